"""Fill a store beforehand, straight through the storage port: many sessions, or one long one."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor

from perdure.opening import open_store, system_ports
from perdure.ports import Sessions
from perdure.records.codec import to_raw
from perdure.records.seqs import Seq
from perdure.records.writes import AppendContext, Commit, InsertConversation, InsertEntry, Write

BATCH = 1_000
TIME_MS = 1_795_000_000_000


def fill(store: str, name: str, entries: int) -> None:
    """Make a session of one conversation with so many entries, the newest fifty in its context."""
    _into(store, lambda container: _fill(container, name, entries))


def crowd(store: str, sessions: int) -> None:
    """Make so many sessions, none of them begun."""
    _into(store, lambda container: _crowd(container, sessions))


def _into(store: str, work: Callable[[Sessions], Coroutine[None, None, None]]) -> None:
    """Run on a thread: on this one the browser's own loop may stand."""

    def run() -> None:
        asyncio.run(work(open_store(store, system_ports())))

    with ThreadPoolExecutor(1) as threads:
        threads.submit(run).result()


async def _fill(container: Sessions, name: str, entries: int) -> None:
    storage = await container.open(name, create=True)
    try:
        for commit in _commits(entries):
            await storage.commit(commit, barrier=False)
    finally:
        await storage.close()
        await container.close()


def _commits(entries: int) -> Iterator[Commit]:
    first = InsertConversation(seq=Seq(1))
    yield Commit(first_seq=Seq(1), last_seq=Seq(1), time_ms=TIME_MS, writes=(first,))
    for start in range(2, entries + 2, BATCH):
        last = min(start + BATCH, entries + 2) - 1
        writes: list[Write] = [_entry(seq) for seq in range(start, last + 1)]
        if last == entries + 1:
            shown = tuple(Seq(seq) for seq in range(last - 49, last + 1))
            last += 1
            writes.append(AppendContext(seq=Seq(last), conv_id=Seq(1), ids=shown))
        yield Commit(
            first_seq=Seq(start), last_seq=Seq(last), time_ms=TIME_MS, writes=tuple(writes)
        )


def _entry(seq: int) -> InsertEntry:
    words = f"entry {seq} says a few words, as an entry does"
    part = {"type": "text", "text": words}
    if seq % 2 == 0:
        kind = "user"
        payload = {"v": 1, "messages": [{"role": "user", "content": [part], "timestamp": TIME_MS}]}
    else:
        kind = "assistant"
        message = {"role": "assistant", "content": [part], "api": "scripted", "stop": "stop"}
        payload = {"v": 1, "message": message | {"model": {"provider": "scripted", "modelId": "x"}}}
    meta = to_raw({"timestamp": TIME_MS, "bytes": len(words), "tokens": 9})
    return InsertEntry(
        seq=Seq(seq), conv_id=Seq(1), kind=kind, meta_json=meta, payload_json=to_raw(payload)
    )


async def _crowd(container: Sessions, sessions: int) -> None:
    try:
        for number in range(sessions):
            await container.create(f"crowd-{number:05}")
    finally:
        await container.close()
