"""Short ways to read a watch."""

import asyncio

from perdure.harness.conversation import Conversation
from perdure.harness.watching import Watch
from perdure.records.conversations import ParentLink
from perdure.records.seqs import Seq
from perdure.records.view import View
from perdure.records.watch import WatchBase, WatchCommit, WatchDelta, WatchEvent
from tests.engine import Engine


async def waiting(watch: Watch) -> list[WatchEvent]:
    """Answer what waits in a watch now, without waiting for more."""
    found: list[WatchEvent] = []
    while True:
        step = asyncio.ensure_future(anext(watch))
        for _ in range(5):
            await asyncio.sleep(0)
        if not step.done():
            step.cancel()
            return found
        try:
            found.append(step.result())
        except StopAsyncIteration:
            return found


async def stored(conv: Conversation, kind: str) -> None:
    """Wait until a live task of a conversation has a part of its scratch stored."""
    async with conv.watch() as watch:
        async for event in watch:
            if isinstance(event, WatchBase) and any(
                f'"{kind}"'.encode() in bytes(one) for one in event.scratch.values()
            ):
                return
            if isinstance(event, WatchDelta) and event.kind == kind:
                return


async def fresh(engine: Engine, conv_id: Seq, *, limit: int = 1_000) -> WatchBase:
    """Answer a base read now."""
    conv = await engine.harness.conversation(conv_id)
    assert conv is not None
    async with conv.watch(limit=limit) as watch:
        base = await anext(watch)
    assert isinstance(base, WatchBase)
    return base


def viewed(events: list[WatchEvent]) -> View:
    """Put the events of a watch together."""
    assert isinstance(events[0], WatchBase)
    view = View(events[0])
    for event in events[1:]:
        view.apply(event)
    return view


def commits(events: list[WatchEvent]) -> list[WatchCommit]:
    """Answer the batches among events."""
    return [event for event in events if isinstance(event, WatchCommit)]


async def fork(engine: Engine) -> Conversation:
    """Make a fork of the root at the present boundary."""
    made: list[Seq] = []
    link = ParentLink(
        conv_id=Seq(1), as_of=(await engine.commits())[-1].last_seq, inherit_values=True
    )
    await engine.line.submit(lambda tx: made.append(tx.insert_conversation(parent=link)))
    conv = await engine.harness.conversation(made[0])
    assert conv is not None
    return conv
