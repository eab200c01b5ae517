"""Event streams cut at random bytes over real connections, while a writer commits at full speed."""

import http.client
import io
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from perdure.client.texts import without_texts
from perdure.records.codec import decode
from perdure.records.scratch import GenerationScratch
from perdure.records.view import View
from perdure.records.watch import WatchBase, WatchCommit, read_event, wire
from tests.surfaces.desk import WAIT_S, Desk
from tests.surfaces.served import Event, Server, events_of, serving

CUTS = 200
SEED = 17
CUT_BYTES_MAX = 60_000
NEWEST = 4
"""Entries that are compared at each cut."""

ENOUGH = 20
"""Commits, deltas, and streaming replies at a cut, without which nothing was tried."""

WORDS = " ".join(f"{n:04}ö" for n in range(1_500))
"""A long reply in which every place is known: nothing lost or doubled stays hidden."""


class Reader:
    """Reads some bytes, is cut off, and comes back with the last id it saw whole."""

    def __init__(self, server: Server, path: str) -> None:
        self._server = server
        self._path = path
        self._last: int | None = None
        self.view: View | None = None
        self.began_after = 0
        self.commits: list[WatchCommit] = []
        self.deltas = 0
        self.streamed = 0

    def read(self, size: int) -> None:
        """Take what comes in so many bytes; an event that is not whole was never told."""
        with self._connected() as answer:
            body = answer.read(size)
        for event in events_of(io.BytesIO(body)):
            self._take(event)

    def read_to(self, last_seq: int) -> None:
        """Take what comes until a commit."""
        with self._connected() as answer:
            for event in events_of(answer):
                self._take(event)
                if event.id == last_seq:
                    return

    @contextmanager
    def _connected(self) -> Iterator[http.client.HTTPResponse]:
        headers = {"Authorization": f"Bearer {self._server.token}"}
        if self._last is not None:
            headers["Last-Event-ID"] = str(self._last)
        connection = http.client.HTTPConnection(self._server.address, timeout=WAIT_S)
        connection.request("GET", f"{self._path}/events?conversation=1", headers=headers)
        with connection.getresponse() as answer:
            assert answer.status == 200
            yield answer
        connection.close()

    def _take(self, event: Event) -> None:
        self._last = event.id or self._last
        told = read_event(without_texts(event.data))
        if isinstance(told, WatchBase):
            assert not self.commits, "who says what it saw last needs no new base"
            self.view, self.began_after = View(told), told.as_of
            return
        if isinstance(told, WatchCommit):
            self.commits.append(told)
        assert self.view is not None
        self.deltas += event.name == "delta"
        self.view.apply(told)

    def check(self) -> None:
        """Compare with a fresh read at the boundary that was reached."""
        if self.view is None:
            return
        base = self.view.base()
        at = f"{self._path}/conversations/1"
        fresh = self._server.get(f"{at}/entries?newest=true&limit={NEWEST}&as_of={base.as_of}")
        live = self._server.get(f"{at}/tasks?live=true&as_of={base.as_of}")["tasks"]
        shown = json.loads(wire(base))
        plain = json.loads(without_texts(json.dumps(fresh).encode()))
        assert shown["entries"][-NEWEST:] == plain["entries"]
        assert {(one["id"], one["status"]) for one in shown["tasks"]} == {
            (one["id"], one["status"]) for one in live
        }
        for scratch in base.scratch.values():
            for part in decode(scratch, GenerationScratch).parts:
                assert WORDS.startswith(part.text), "no text is lost or shown twice"
                self.streamed += bool(part.text)


@contextmanager
def writing(server: Server, path: str) -> Iterator[None]:
    """Give one input after the other, as fast as each is answered."""
    told = threading.Event()

    def write() -> None:
        while not told.is_set():
            given = server.ask("POST", f"{path}/inputs", {"content": "more"})[1]
            assert server.get(f"{path}/inputs/{given['inputId']}?wait=20")["final"]

    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(write)
        try:
            yield
        finally:
            told.set()
            writer.result(WAIT_S)


@pytest.mark.spec("WB-17", "WB-16", "BB-45")
def test_a_stream_cut_at_any_byte_loses_and_doubles_nothing(desk: Desk) -> None:
    chosen = random.Random(SEED)
    model = desk.script(
        {
            "when": "more",
            "text": WORDS,
            "calls": [{"name": "glob", "args": {"pattern": "*"}}],
            "uses": 0,
        },
        {"text": WORDS, "uses": 0},
        chunk=100,
    )
    with serving(desk, "-m", model) as server:
        session = server.ask("POST", "/v1/sessions", {"name": "a"})[1]["id"]
        path = f"/v1/sessions/{session}"
        reader = Reader(server, path)
        with writing(server, path):
            for _ in range(CUTS):
                reader.read(chosen.randrange(1, CUT_BYTES_MAX))
                reader.check()
        (newest,) = server.get(f"{path}/commits?newest=true&limit=1&writes=false")["commits"]
        if reader.commits[-1].last_seq < newest["lastSeq"]:
            reader.read_to(newest["lastSeq"])
        reader.check()
        told = [(one.first_seq, one.last_seq) for one in reader.commits]
        assert told == commits_after(server, path, reader.began_after)
    assert min(len(told), reader.deltas, reader.streamed) >= ENOUGH


def commits_after(server: Server, path: str, seq: int) -> list[tuple[int, int]]:
    """Answer where each commit begins and ends."""
    found: list[tuple[int, int]] = []
    after: int | None = seq
    while after is not None:
        page = server.get(f"{path}/commits?limit=1000&writes=false&after={after}")
        found += [(one["firstSeq"], one["lastSeq"]) for one in page["commits"]]
        after = page["next"]
    return found
