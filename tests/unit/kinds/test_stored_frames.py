"""What a streamed reply leaves in its working scope is bounded (PV-13)."""

import asyncio
import time

import pytest

from perdure.kinds.pump import BATCH_BYTES, BATCH_MS
from perdure.providers.script import say
from perdure.records.writes import AppendList
from tests.engine import Engine, is_main

TEXT = "".join(f"{number:05}" for number in range(20_480))
"""100 KiB."""


@pytest.mark.spec("PV-13")
async def test_frames_of_100_kib_take_twice_the_text_and_a_commit_per_4_kib(
    engine: Engine,
) -> None:
    assert len(TEXT) == 100 * 1024
    root = await engine.root([say(TEXT, chunk=5, delay_ms=1)])
    began = time.monotonic()
    running = engine.begin(root.prompt("tell me"))
    while not running.done():
        due = engine.clock.next_due_ms()
        if due is not None:
            engine.clock.advance(due)
        await asyncio.sleep(0)
    elapsed_ms = 1000 * (time.monotonic() - began)
    assert running.result().text == TEXT
    working = [commit for commit in engine.storage.commits_made if not is_main(commit)]
    frames = [
        bytes(write.value_json)
        for commit in working
        for write in commit.writes
        if isinstance(write, AppendList)
    ]
    assert working
    assert len(working) <= len(TEXT) / BATCH_BYTES + elapsed_ms / BATCH_MS + 1
    assert len(TEXT) * 0.9 <= sum(map(len, frames)) <= 2 * len(TEXT)
    assert max(map(len, frames)) < 3 * BATCH_BYTES
