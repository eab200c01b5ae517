"""The event stream: a base, then every commit once, and a reader that comes back (WB-15, WB-16)."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from perdure.providers.script import say
from perdure.web import stream
from tests.unit.web.site import HOST, PORT, TOKEN, Site, scope_of


class Sent(NamedTuple):
    """One event as it was sent."""

    name: str
    id: int | None
    data: Any


class Reader:
    """A reader of one stream, for as long as the test wants."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.gone = asyncio.Event()
        self._text = ""
        self._more = asyncio.Event()
        self.ended = False

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): text.decode() for name, text in message["headers"]}
        else:
            self._text += message["body"].decode()
            self.ended = not message["more_body"]
        self._more.set()

    async def next(self) -> Sent:
        """Answer the next event, comments left out."""
        while "\n\n" not in self._text:
            assert not self.ended, "the stream has ended"
            self._more.clear()
            await self._more.wait()
        block, _, self._text = self._text.partition("\n\n")
        if block.startswith(":"):
            return await self.next()
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        number = int(fields["id"]) if "id" in fields else None
        return Sent(fields["event"], number, json.loads(fields["data"]))

    async def until(self, name: str) -> list[Sent]:
        """Answer the events up to the first of a name."""
        found: list[Sent] = []
        while not found or found[-1].name != name:
            found.append(await self.next())
        return found


@asynccontextmanager
async def reading(site: Site, path: str, last: int | None = None) -> AsyncGenerator[Reader]:
    """Read a stream."""
    reader = Reader()
    headers = {"host": f"{HOST}:{PORT}", "authorization": f"Bearer {TOKEN}"}
    if last is not None:
        headers["last-event-id"] = str(last)
    task = asyncio.ensure_future(
        site.app(scope_of("GET", path, headers), reader.receive, reader.send)
    )
    try:
        yield reader
    finally:
        reader.gone.set()
        await task


@pytest.mark.spec("WB-15")
async def test_a_stream_begins_with_a_base_and_tells_each_commit_once(site: Site) -> None:
    site.script = [say("It rains.")]
    path = await site.session()
    async with reading(site, f"{path}/events") as reader:
        base = await reader.next()
        assert (reader.status, reader.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
        assert reader.headers["cache-control"] == "no-store"
        assert (base.name, base.id) == ("base", base.data["asOf"])
        await site.ask("POST", f"{path}/inputs", {"content": "Weather?"})
        told = await reader.until("signal")
    assert told[-1].data == {"type": "quiescent", "conv": 1}
    commits = [one for one in told if one.name == "commit"]
    written = (await site.ask("GET", f"{path}/commits?after={base.id}")).json["commits"]
    assert [one.data for one in commits] == written
    assert [one.id for one in commits] == [one["lastSeq"] for one in written]
    assert all(one.id is None for one in told if one.name != "commit")


@pytest.mark.spec("WB-16")
async def test_a_reader_that_comes_back_is_told_what_it_missed(site: Site) -> None:
    site.script = [say("one"), say("two")]
    path = await site.session()
    async with reading(site, f"{path}/events") as reader:
        base = await reader.next()
        await site.ask("POST", f"{path}/inputs", {"content": "a"})
        seen = [one for one in await reader.until("signal") if one.name == "commit"]
    await site.ask("POST", f"{path}/inputs", {"content": "b"})
    await site.ask("POST", f"{path}/drive?wait=20")
    await site.restart()
    async with reading(site, f"{path}/events", last=seen[0].id) as reader:
        written = (await site.ask("GET", f"{path}/commits?after={seen[0].id}")).json["commits"]
        assert [(await reader.next()).data for _ in written] == written
    assert base.id is not None
    for bad, reason in ((seen[0].data["lastSeq"] - 1, "inside_commit"), (10_000, "future")):
        async with reading(site, f"{path}/events", last=bad) as reader:
            first = await reader.next()
            assert (first.name, first.data["reason"]) == ("snapshot_required", reason)
            assert (await reader.next()).name == "base"
    answer = await site.ask("GET", f"{path}/events?last_event_id=x")
    assert (answer.status, answer.code) == (400, "invariant")


@pytest.mark.spec("WB-18")
async def test_there_are_only_so_many_streams(
    memory_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = memory_site
    monkeypatch.setattr(stream, "STREAMS_MAX", 1)
    path = await site.session()
    async with reading(site, f"{path}/events") as reader:
        await reader.next()
        full = await site.ask("GET", f"{path}/events")
        assert (full.status, full.code) == (503, "overloaded")
        assert full.headers["retry-after"]
    async with reading(site, f"{path}/events") as reader:
        assert (await reader.next()).name == "base"


@pytest.mark.spec("WB-20")
async def test_the_end_of_the_server_ends_a_stream_with_its_word(memory_site: Site) -> None:
    site = memory_site
    path = await site.session()
    async with reading(site, f"{path}/events") as reader:
        await reader.next()
        site.house.stop()
        last = await reader.next()
        assert (last.name, last.data) == ("signal", {"type": "closed"})


async def test_an_unknown_session_or_conversation_is_refused_before_anything_is_sent(
    memory_site: Site,
) -> None:
    site = memory_site
    path = await site.session()
    assert (await site.ask("GET", f"/v1/sessions/{'0' * 32}/events")).status == 404
    absent = await site.ask("GET", f"{path}/events?conversation=999")
    assert (absent.status, absent.code) == (404, "unknown_target")
