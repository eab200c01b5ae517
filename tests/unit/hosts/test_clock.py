"""Time and chance come from one place each, and a test can own time."""

import asyncio
import re
import time

import pytest

from perdure.hosts.clock import SystemClock
from perdure.hosts.randomness import SystemRandomness
from perdure.testing.manual_clock import START_MS, ManualClock


async def test_the_system_clock_answers_milliseconds() -> None:
    clock = SystemClock()
    assert abs(clock.now_ms() - time.time() * 1000) < 1_000
    before = clock.monotonic_ms()
    await clock.sleep(20)
    assert clock.monotonic_ms() - before >= 19


async def test_a_sleep_is_cancellable() -> None:
    sleeping = asyncio.ensure_future(SystemClock().sleep(1_000_000))
    await asyncio.sleep(0)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeping


def test_tokens_are_hex_of_the_asked_length_and_differ() -> None:
    tokens = {SystemRandomness().token(16) for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch("[0-9a-f]{32}", token) for token in tokens)


async def test_a_manual_clock_wakes_who_is_due_in_order() -> None:
    clock, woken = ManualClock(), []

    async def sleeper(ms: int) -> None:
        await clock.sleep(ms)
        woken.append(ms)

    waiting = [asyncio.ensure_future(sleeper(ms)) for ms in (30, 10, 20)]
    await clock.until_asleep(3)
    assert clock.next_due_ms() == 10
    clock.advance(25)
    await asyncio.gather(waiting[1], waiting[2])
    assert (woken, clock.sleepers, clock.next_due_ms()) == ([10, 20], 1, 5)
    clock.advance(5)
    await waiting[0]
    assert (clock.now_ms(), clock.monotonic_ms()) == (START_MS + 30, 30)


async def test_setting_the_wall_clock_wakes_nobody() -> None:
    clock = ManualClock(1_000)
    sleeping = asyncio.ensure_future(clock.sleep(10))
    await clock.until_asleep()
    clock.set_now_ms(5)
    clock.set_now_ms(10_000_000)
    assert (clock.now_ms(), clock.sleepers, clock.monotonic_ms()) == (10_000_000, 1, 0)
    sleeping.cancel()
    await asyncio.wait([sleeping])
    assert clock.sleepers == 0


def test_a_manual_clock_does_not_run_backwards() -> None:
    with pytest.raises(ValueError, match="-1"):
        ManualClock().advance(-1)
