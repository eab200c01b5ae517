"""A program cannot tell a conversation of a server from one of its own process (WB-08 to WB-13).

Each story runs twice, over an open harness and over a server, and its answers are compared.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.drive.outcomes import DriveOutcome
from perdure.errors import Rejected
from perdure.harness.approvals import list_approvals
from perdure.hosts.control_socket import ControlSocket
from perdure.hosts.threads import DaemonThreads
from perdure.providers.script import call, fail, say
from perdure.records.addresses import (
    ACTIVE_TOOLS,
    MODEL,
    THINKING,
    ConversationList,
    ConversationValue,
    SessionValue,
    entry_label,
)
from perdure.records.budgets import Budget
from perdure.records.messages import text_message
from perdure.records.models import parse_model
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.watch import WatchBase
from perdure.web.control import answer
from tests.engine import Engine, Probe
from tests.unit.client.served import served
from tests.unit.harness.watched import fork

Story = Callable[[Any], Awaitable[list[Any]]]

EXACT = {"n": 2**60, "argsText": "mine", "args": {"n": 2**70, "nText": "1", "x": 1.0}, "é": []}
COUNTS = ConversationValue[Any]("test.counts", "k")
NOTES = ConversationList[Any]("test.notes")


@asynccontextmanager
async def other_engine(folder: Path) -> AsyncGenerator[Engine]:
    made = Engine("memory", folder)
    yield made
    await made.aclose()


async def both(
    memory_engine: Engine, tmp_path: Path, script: Any, story: Story, **options: Any
) -> list[Any]:
    """Tell a story here and there; answers what both answered."""
    async with other_engine(tmp_path) as engine:
        harness = await engine.open(script, session="paris", **options)
        here = await story(harness)
    async with (
        served(memory_engine, script, **options) as site,
        site.connected() as server,
    ):
        there = await story(await server.session("paris", create=True))
    assert len(here) == len(there)
    for number, (one, other) in enumerate(zip(here, there, strict=True)):
        assert one == other, number
        assert type(one) is type(other)
    return here


async def refused(work: Awaitable[object]) -> tuple[str, str, Any]:
    with pytest.raises(Rejected) as error:
        await work
    return error.value.code, error.value.message, error.value.details


@pytest.mark.spec("WB-09", "WB-10", "WB-11")
async def test_an_exchange_reads_the_same_at_every_boundary(
    memory_engine: Engine, tmp_path: Path
) -> None:
    async def story(session: Any) -> list[Any]:
        root = await session.root()
        told = [root.id, await root.prompt("Weather?", request_id="a")]
        told.append(await root.accept("Weather?", request_id="a"))
        told.append(await root.prompt(text_message("And now?"), request_id="b"))
        ends = [0, *(commit.last_seq for commit in await session.commits())]
        for as_of in [None, *ends[1:]]:
            page = await root.entries(as_of=as_of)
            told += [page, page.as_of, page.page()]
            told.append(await root.state(as_of=as_of))
            told.append(list(await root.tasks(as_of=as_of)))
            told.append(list(await root.tasks(live=True, as_of=as_of)))
            told.append(await session.usage_totals(as_of=as_of))
            told.append(await session.usage_totals(root.id, as_of=as_of))
            told.append(list(await session.conversations(as_of=as_of)))
            told.append(await root.task(Seq(10), as_of=as_of))
        told += [await root.entry(Seq(one)) for one in range(1, ends[-1] + 2)]
        told += [await root.task(Seq(one)) for one in range(1, ends[-1] + 2)]
        told += [list(await session.commits(after=one, limit=2)) for one in ends]
        told.append(await session.conversation(Seq(99)))
        told.append((await session.conversation(root.id)).id)
        told.append(await root.get_value(MODEL, None))
        told.append(await root.get_value(COUNTS, "none"))
        told.append(list(await root.read_list(NOTES, ListPage(limit=3))))
        told.append(await root.drive())
        return told

    tool = Probe("t")
    script = [say(call("t", EXACT)), say("It rains."), say("Still.")]
    told = await both(memory_engine, tmp_path, script, story, tools=[tool])
    assert told[1].text == "It rains."
    assert tool.runs == [EXACT, EXACT]


@pytest.mark.spec("WB-09", "WT-08")
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 10_000])
async def test_a_page_of_a_transcript_is_the_same(
    memory_engine: Engine, tmp_path: Path, limit: int, newest_first: bool
) -> None:
    async def story(session: Any) -> list[Any]:
        root = await session.root()
        ids = [
            (await root.append_message(f"note {number}", request_id=f"{number}")).input_id
            for number in range(5)
        ]
        bounds = [None, ids[0], ids[2], Seq(ids[3] + 1), Seq(999)]
        return [
            await root.entries(after=after, before=before, newest_first=newest_first, limit=limit)
            for after in bounds
            for before in bounds
        ]

    await both(memory_engine, tmp_path, [], story)


@pytest.mark.spec("WB-07")
async def test_more_than_a_page_is_read_at_one_boundary(memory_engine: Engine) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        session = await server.session("paris", create=True)
        root = await session.root()
        harness = memory_engine.harness
        local = await harness.root()

        def write(tx: Any) -> None:
            for number in range(1_200):
                tx.append_list(NOTES.bind(root.id), number, tag="end" if number == 1_100 else None)

        await harness.command(write)
        for order in ("asc", "desc"):
            for stop in (None, "end"):
                page = ListPage(limit=5_000, order=order, stop_at_tag=stop)
                assert await root.read_list(NOTES, page) == await local.read_list(NOTES, page)
        page = ListPage(limit=1_100, after=Seq(3), before=Seq(1_150))
        assert await root.read_list(NOTES, page) == await local.read_list(NOTES, page)


@pytest.mark.spec("WB-10", "QU-14")
async def test_queues_and_aborts_answer_the_same(memory_engine: Engine, tmp_path: Path) -> None:
    async def story(session: Any) -> list[Any]:
        root = await session.root()
        told: list[Any] = [await root.accept("go", request_id="1", budget=Budget(tokens=9_000))]
        told.append(await root.steer("left", request_id="2"))
        told.append(await root.follow_up("then", request_id="3"))
        told.append(await root.follow_up("then", request_id="3"))
        told.append(await root.next_run([text_message("a"), text_message("b")], request_id="4"))
        told.append(await root.append_message("note", request_id="5"))
        told.append(await root.state())
        told.append(await root.cancel_queued(told[2].input_id))
        told.append(await root.cancel_queued(told[2].input_id))
        told.append(await root.cancel_queued(Seq(999)))
        told.append(await root.result(told[2].input_id))
        told.append(await root.abort(only_if=told[0].input_id))
        told.append(await root.abort())
        told.append(await root.drive())
        told.append(await root.wait(told[0].input_id))
        told.append(await root.prompt("again", request_id="6"))
        told.append(await root.follow_up("later", request_id="7"))
        told.append(await root.flush(budget=Budget(turns=3)))
        told.append(await root.drive())
        told.append(await root.shutdown())
        told.append(await root.state())
        return told

    script = [fail("auth"), say("one"), say("two"), say("three")]
    await both(memory_engine, tmp_path, script, story)


@pytest.mark.spec("WB-08", "FK-02", "FK-10", "ID-10")
async def test_forks_and_rewinds_are_the_same(memory_engine: Engine, tmp_path: Path) -> None:
    async def story(session: Any) -> list[Any]:
        root = await session.root()
        await root.prompt("hi", request_id="1")
        user, answer_ = await root.entries()
        forks = [
            await root.fork(at=user.id, label="left", request_id="2"),
            await root.fork(at=user.id, label="left", request_id="2"),
            await root.fork(as_of=answer_.commit_end, context="fresh", request_id="3"),
            await root.rewind(at=answer_.id, keep_running=True, request_id="4"),
            await root.rewind(at=user.id, request_id="5"),
        ]
        told: list[Any] = [one.id for one in forks]
        for one in forks:
            told += [await one.state(), await one.entries(), await one.entry(user.id)]
        told.append(await root.entry(answer_.id, as_of=user.commit_end))
        told.append(await forks[0].prompt("again", request_id="6"))
        told.append(await refused(root.fork(at=user.id, label="right", request_id="2")))
        told.append(await refused(root.fork(at=Seq(999), request_id="7")))
        return told

    told = await both(memory_engine, tmp_path, [say("one"), say("two")], story)
    assert len({*told[:5]}) == 4


@pytest.mark.spec("WB-10", "OP-26")
async def test_settings_are_changed_the_same(memory_engine: Engine, tmp_path: Path) -> None:
    async def story(session: Any) -> list[Any]:
        root = await session.root()
        told: list[Any] = [await root.append_message("note", request_id="5")]
        told.append(await root.configure(label="trip", steering_mode="one-at-a-time"))
        told.append(await root.configure(label=None))
        told.append(await root.set_value(THINKING, "high"))
        told.append(await root.set_value(MODEL, parse_model("scripted:other")))
        told.append(await root.set_value(ACTIVE_TOOLS, []))
        values = (THINKING, MODEL, ACTIVE_TOOLS)
        told += [await root.get_value(one, None) for one in values]
        entries = await root.entries()
        told.append(await session.set_value(entry_label(entries[0].id), "start"))
        told.append(await session.delete_value(entry_label(entries[0].id)))
        told.append(await root.reset_context([entries[0].id], expect_prefix_version=0))
        told.append(await root.state())
        return told

    await both(memory_engine, tmp_path, [], story)


@pytest.mark.spec("WB-06", "ER-01")
async def test_a_rule_says_no_in_the_same_words(memory_engine: Engine, tmp_path: Path) -> None:
    async def story(session: Any) -> list[Any]:
        root = await session.root()
        entry = (await root.append_message("note", request_id="k")).input_id
        return [
            await refused(root.flush()),
            await refused(root.result(Seq(99))),
            await refused(root.abort(only_if=Seq(99))),
            await refused(root.reset_context([entry], expect_prefix_version=7)),
            await refused(root.reset_context([Seq(99)])),
            await refused(root.append_message("other", request_id="k")),
            await refused(root.accept([], request_id="l")),
            await refused(root.accept(7)),
            await refused(root.accept("x", request_id="\x00")),
            await refused(root.accept("x", budget=7)),
            await refused(root.state(as_of=Seq(2))),
            await refused(root.get_value(SessionValue("test.x"), None)),
            (await refused(root.set_value(MODEL, parse_model("nowhere:x"))))[0],
            (await refused(root.set_value(MODEL, "scripted:x")))[0],
            (await refused(root.configure(steering_mode="some")))[0],
            (await refused(root.entries(limit=0)))[0],
            (await refused(root.entries(limit=10_001)))[0],
            (await refused(session.decide_approval(Seq(99), "grant")))[0],
        ]

    codes = [one if isinstance(one, str) else one[0] for one in await both(
        memory_engine, tmp_path, [], story
    )]  # fmt: skip
    assert set(codes) == {
        "nothing_to_do", "not_found", "unknown_target", "version_mismatch", "request_conflict",
        "invariant",
    }  # fmt: skip


@pytest.mark.spec("WB-13", "AQ-06")
async def test_a_question_is_shown_and_decided_the_same(
    memory_engine: Engine, tmp_path: Path
) -> None:
    async def story(session: Any) -> list[Any]:
        root = await session.root()
        told: list[Any] = [await root.prompt("go", request_id="a")]
        if hasattr(session, "approvals"):
            views, by = await session.approvals(), {}
        else:
            views, by = await list_approvals(session._core.storage), {"by": "http:local"}
        told.append(list(views))
        decided = views[0].id
        told.append(await session.decide_approval(decided, "grant", details=EXACT, **by))
        told.append(await session.decide_approval(decided, "deny", **by))
        told.append(await refused(session.decide_approval(root.id, "grant", **by)))
        told.append(await session.drive())
        told.append(await root.result(told[0].input_id))
        if by:
            told.append(list(await list_approvals(session._core.storage, waiting_only=False)))
        else:
            told.append(list(await session.approvals(waiting_only=False)))
        told.append(list(await root.tasks()))
        return told

    tool = Probe("t", approval="ask")
    script = [say(call("t", EXACT)), say("Done.")]
    told = await both(memory_engine, tmp_path, script, story, tools=[tool])
    assert (told[0].final, told[6].text) == (False, "Done.")
    assert told[2].decision.by == "http:local"


@pytest.mark.spec("WB-09")
async def test_a_fork_shows_what_it_inherits(memory_engine: Engine) -> None:
    async with served(memory_engine, [say("one")]) as site, site.connected() as server:
        session = await server.session("paris", create=True)
        await (await session.root()).prompt("hi")
        local = await fork(memory_engine)
        remote = await session.conversation(local.id)
        assert remote is not None
        await remote.append_message("own")
        shown = await local.entries()
        assert len(shown) == 3
        assert await remote.entries() == shown
        assert await remote.entry(shown[0].id) == await local.entry(shown[0].id) == shown[0]
        assert await remote.entry(shown[2].id) == shown[2]
        root = await session.root()
        assert list(await session.conversations(parent=root.id)) == [await remote.state()]
        with pytest.raises(Rejected, match="belongs to conversation") as error:
            await remote.result(shown[0].id)
        assert error.value.code == "unknown_target"


@pytest.mark.spec("WB-08")
async def test_sessions_are_found_made_renamed_and_deleted_by_name(memory_engine: Engine) -> None:
    async with served(memory_engine) as site, site.connected() as server:
        assert (await refused(server.session("paris")))[0] == "not_found"
        made = await server.session("paris", create=True)
        assert (await server.session("paris", create=True)).id == made.id
        await server.session("rome", create=True)
        store = memory_engine.sessions
        assert list(await server.sessions()) == list(await store.page(after=None, limit=9))
        assert [one.name for one in await server.sessions(after="paris", limit=1)] == ["rome"]
        await server.rename("rome", "łódź/1?")
        assert (await server.session("łódź/1?")).name == "łódź/1?"
        assert (await refused(server.rename("paris", "łódź/1?")))[0] == "invariant"
        await site.site.house.give_back(made.id)
        await server.delete("paris")
        assert [one.name for one in await server.sessions()] == ["łódź/1?"]
        assert (await refused(made.root()))[0] == "not_found"


@pytest.mark.spec("WB-13")
async def test_what_waits_in_any_session_is_answered_with_it(memory_engine: Engine) -> None:
    tool = Probe("t", approval="ask")
    script = [say(call("t", EXACT), call("t")), say("Done.")]
    async with served(memory_engine, script, tools=[tool]) as site, site.connected() as server:
        assert list(await server.approvals()) == []
        session = await server.session("paris", create=True)
        await server.session("rome", create=True)
        root = await session.root()
        await root.prompt("go")
        found = await server.approvals()
        assert [view for _, view in found] == list(await session.approvals())
        assert [(one.id, one.name) for one, _ in found] == [(session.id, "paris")] * 2
        for one, view in found:
            await one.decide_approval(view.id, "grant")
        assert (await session.drive()).outcome is DriveOutcome.IDLE
        assert len(tool.runs) == 2
        assert list(await server.approvals()) == []


@pytest.mark.spec("CM-16")
async def test_a_control_address_is_a_server_of_one_session(memory_engine: Engine) -> None:
    harness = await memory_engine.open([say("It rains.")], session="paris")
    control = await asyncio.to_thread(ControlSocket.make)
    begin = partial(answer, harness, memory_engine.sessions, DaemonThreads())
    control.listen(begin, failed=lambda error: pytest.fail(str(error)))
    url = f"unix:{control.address}"
    async with perdure.connect(url) as server:
        session = await server.session("paris")
        root = await session.root()
        async with root.watch() as watch:
            result = await root.prompt("Weather?")
            assert result == await (await harness.root()).result(result.input_id)
            assert isinstance(await anext(watch), WatchBase)
        assert (await refused(server.session("rome", create=True)))[0] == "invariant"
    await control.close()
    await asyncio.to_thread(control.remove)
    with pytest.raises(perdure.Unreachable, match=url):
        await perdure.connect(url, tries=1).__aenter__()
