"""A lost connection: one effect, no gap and no double, and a clear word when nobody is there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import perdure
from perdure.client.conversation import RemoteConversation
from perdure.errors import Rejected
from perdure.providers.script import call, say
from perdure.records.watch import (
    ClosedSignal,
    Quiescent,
    SnapshotRequired,
    WatchBase,
    WatchCommit,
    WatchEvent,
)
from tests.engine import Engine, Gate, Probe
from tests.unit.client.served import Served, Wire, served
from tests.unit.web.site import Site

Verb = Callable[[RemoteConversation], Awaitable[Any]]

ANSWER_HEAD = 40
"""So much of an answer is less than all of it."""

CREATING: dict[str, Verb] = {
    "accept": lambda root: root.accept("hi"),
    "steer": lambda root: root.steer("hi"),
    "follow_up": lambda root: root.follow_up("hi"),
    "next_run": lambda root: root.next_run("hi"),
    "append_message": lambda root: root.append_message("hi"),
}

UNREPEATED: dict[str, Verb] = {
    "abort": lambda root: root.abort(),
    "shutdown": lambda root: root.shutdown(),
    "flush": lambda root: root.flush(),
    "configure": lambda root: root.configure(label="x"),
    "reset_context": lambda root: root.reset_context(),
}


async def root_of(site: Served, server: Any) -> RemoteConversation:
    root: RemoteConversation = await (await server.session("paris", create=True)).root()
    site.wire.requests.clear()
    return root


def inputs(site: Served) -> list[bytes]:
    return [one for one in site.wire.requests if b"/inputs?" in one.split(b"\r\n")[0]]


@pytest.mark.spec("WB-12", "ID-10")
@pytest.mark.parametrize("verb", CREATING)
@pytest.mark.parametrize("cut", [0, ANSWER_HEAD])
async def test_a_lost_answer_is_asked_for_again_with_the_same_bytes_and_has_one_effect(
    memory_engine: Engine, verb: str, cut: int
) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        root = await root_of(site, server)
        site.wire.cuts = [cut, cut, cut]
        accepted = await CREATING[verb](root)
        assert not accepted.duplicate
        asked = inputs(site)
        assert len(asked) == 4
        assert len(set(asked)) == 1
        made = [
            write
            for commit in await memory_engine.commits()
            for write in commit.writes
            if getattr(write, "kind", None) in ("user", "input")
        ]
        assert [write.seq for write in made] == [accepted.input_id]
        assert site.clock.pauses == [100, 200, 400]


@pytest.mark.spec("WB-08", "WB-12")
async def test_a_session_is_made_once(memory_engine: Engine) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        site.wire.cuts = [10_000, 0, 0]
        made = await server.session("paris", create=True)
        assert [one.id for one in await server.sessions()] == [made.id]


@pytest.mark.spec("WB-12")
async def test_a_prompt_survives_every_cut(memory_engine: Engine) -> None:
    script = [say(call("t")), say("It rains.")]
    tool = Probe("t")
    async with (
        served(memory_engine, script, tools=[tool]) as site,
        site.connected(tries=9) as server,
    ):
        root = await root_of(site, server)
        site.wire.cuts = [0, ANSWER_HEAD, 0, ANSWER_HEAD, 0, 0, ANSWER_HEAD, 0]
        assert (await root.prompt("Weather?")).text == "It rains."
        assert len(tool.runs) == 1
        assert len(set(inputs(site))) == 1


@pytest.mark.spec("WB-12", "WB-20")
async def test_a_prompt_goes_on_when_the_server_begins_again(memory_engine: Engine) -> None:
    gate = Gate()
    tool = Probe("t", gate=gate, replay="safe")
    async with Wire().listening() as wire:
        site = Served(Site(memory_engine, [say(call("t"))], tools=[tool]), wire)
        async with site.serving(), site.connected() as server:
            root = await root_of(site, server)
            asked = asyncio.ensure_future(root.prompt("Weather?"))
            await gate.reached.wait()
            site.clock.goes.clear()
        gate.open()
        await site.site.restart([say("It rains.")])
        async with site.serving():
            site.clock.goes.set()
            assert (await asked).text == "It rains."
            assert len(tool.runs) == 2
            assert len(set(inputs(site))) == 1


@pytest.mark.spec("WB-12")
@pytest.mark.parametrize("verb", UNREPEATED)
async def test_what_would_have_a_second_effect_is_not_sent_again(
    memory_engine: Engine, verb: str
) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        root = await root_of(site, server)
        await root.follow_up("later")
        site.wire.requests.clear()
        site.wire.cuts = [0]
        with pytest.raises(perdure.Unreachable, match="ended before the answer did") as lost:
            await UNREPEATED[verb](root)
        assert lost.value.was_sent
        assert sum(one.startswith(b"POST") for one in site.wire.requests) == 1


async def test_tries_come_to_an_end(memory_engine: Engine) -> None:
    async with served(memory_engine) as site, site.connected(tries=7) as server:
        root = await root_of(site, server)
        site.wire.cuts = [0] * 7
        with pytest.raises(perdure.Unreachable):
            await root.accept("hi")
        assert site.clock.pauses == [100, 200, 400, 800, 1_600, 2_000]
        assert (await root.accept("ho")).input_id


@pytest.mark.spec("WB-02")
async def test_a_wrong_token_is_said_at_once(memory_engine: Engine) -> None:
    async with served(memory_engine) as site:
        with pytest.raises(perdure.Refused, match="token") as refused:
            async with site.connected(token="wrong"):
                pass
        assert refused.value.code == "unauthorized"
        assert site.clock.pauses == []


@pytest.mark.spec("WB-12")
async def test_a_server_that_is_gone_is_said(memory_engine: Engine) -> None:
    async with served(memory_engine) as site:
        async with site.connected() as server:
            root = await root_of(site, server)
            site.wire.upstream = 1  # nobody listens there
            with pytest.raises(perdure.Unreachable, match=site.url):
                await root.state()
        with pytest.raises(perdure.Unreachable):
            async with site.connected():
                pass
    with pytest.raises(perdure.Unreachable, match="no server answers at") as gone:
        async with site.connected():
            pass
    assert not gone.value.was_sent


async def seen_until(watch: Any, last: type[WatchEvent]) -> list[WatchEvent]:
    found: list[WatchEvent] = []
    async for event in watch:
        found.append(event)
        if isinstance(event, last):
            return found
    return found


@pytest.mark.spec("WB-15", "WT-01")
async def test_a_watch_tells_what_one_of_the_same_process_tells(memory_engine: Engine) -> None:
    async with served(memory_engine, [say("a", "b"), say("c")]) as site, site.connected() as server:
        root = await root_of(site, server)
        local = await memory_engine.harness.root()
        async with root.watch() as there, local.watch() as here:
            await root.prompt("hi")
            assert await seen_until(there, Quiescent) == await seen_until(here, Quiescent)
        session = await server.session("paris")
        whole = session.watch(limit=1)
        async with whole as there, memory_engine.harness.watch(limit=1) as here:
            await root.prompt("ho")
            assert await seen_until(there, Quiescent) == await seen_until(here, Quiescent)
        assert [event async for event in whole] == []


@pytest.mark.spec("WB-16")
@pytest.mark.parametrize("cut", [0, 150, 300, 700, 1_500, 2_500, 4_000])
async def test_a_watch_goes_on_over_cuts_without_gap_or_double(
    memory_engine: Engine, cut: int
) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        root = await root_of(site, server)
        site.wire.cuts = [cut, cut, cut, 10_000, cut]
        local = await memory_engine.harness.root()
        async with root.watch() as watch:
            begun = await anext(watch)
            assert isinstance(begun, WatchBase)
            for number in range(12):
                await local.append_message(f"note {number}")
                if number == 5:
                    site.wire.hang_up()
            written = [one for one in await memory_engine.commits() if one.first_seq > begun.as_of]
            told: list[WatchCommit] = []
            while len(told) < len(written):
                event = await anext(watch)
                assert isinstance(event, WatchCommit)
                told.append(event)
        assert [(one.first_seq, one.last_seq) for one in told] == [
            (one.first_seq, one.last_seq) for one in written
        ]


@pytest.mark.spec("WB-16")
async def test_a_watch_begins_after_a_commit_that_was_seen(memory_engine: Engine) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        root = await root_of(site, server)
        first = await root.append_message("one")
        seen = (await memory_engine.commits())[-1].last_seq
        await root.append_message("two")
        async with root.watch(after=seen) as watch:
            event = await anext(watch)
            assert isinstance(event, WatchCommit)
            assert event.first_seq == seen + 1
        async with root.watch(after=first.input_id) as watch:
            assert isinstance(await anext(watch), SnapshotRequired)
            assert isinstance(await anext(watch), WatchBase)


async def test_a_wait_for_an_event_that_is_cancelled_loses_none(memory_engine: Engine) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        root = await root_of(site, server)
        async with root.watch() as watch:
            await anext(watch)
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
            await root.append_message("note")
            event = await anext(watch)
            assert isinstance(event, WatchCommit)


@pytest.mark.spec("WB-20", "WT-07")
async def test_the_end_of_a_server_ends_a_watch(memory_engine: Engine) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        root = await root_of(site, server)
        watch = root.watch()
        await anext(watch)
        site.site.house.stop()
        assert [event async for event in watch] == [ClosedSignal()]


@pytest.mark.spec("WT-07")
async def test_a_watch_of_nothing_is_refused(memory_engine: Engine) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        root = await root_of(site, server)
        with pytest.raises(Rejected, match="limit"):
            await anext(root.watch(limit=-1))


async def test_who_stops_iterating_hangs_up(memory_engine: Engine) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        root = await root_of(site, server)
        site.wire.left.clear()
        async for event in root.watch():
            assert isinstance(event, WatchBase)
            break
        await site.wire.left.wait()


@pytest.mark.spec("WT-15")
async def test_a_watch_that_is_closed_elsewhere_ends(memory_engine: Engine) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        root = await root_of(site, server)
        watch = root.watch()
        await anext(watch)
        waiting = asyncio.ensure_future(seen_until(watch, WatchCommit))
        await asyncio.sleep(0)
        await watch.close()
        assert await waiting == []
        assert site.clock.pauses == []


@pytest.mark.spec("BB-20")
async def test_a_prompt_that_was_aborted_is_answered_when_its_call_has_ended(
    memory_engine: Engine,
) -> None:
    stops, goes = asyncio.Event(), Gate()

    async def stubborn(_: Any, ctx: Any) -> None:
        try:
            stops.set()
            await asyncio.Event().wait()
        finally:
            await goes()

    tool = Probe("t", body=stubborn)
    async with (
        served(memory_engine, [say(call("t"))], tools=[tool]) as site,
        site.connected() as server,
    ):
        root = await root_of(site, server)
        asked = asyncio.ensure_future(root.prompt("go"))
        await stops.wait()
        await root.abort()
        await goes.reached.wait()
        assert (await root.tasks(live=True))[0].abort_requested
        assert not asked.done()
        goes.open()
        assert (await asked).state == "aborted"
        assert not await root.tasks(live=True)
