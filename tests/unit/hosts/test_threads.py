"""Blocking work runs beside the loop, and never keeps anything from ending."""

import asyncio
import contextvars
import subprocess
import sys
import threading

import pytest

from perdure.hosts.threads import DaemonThreads


async def test_work_runs_on_a_daemon_thread_of_its_name() -> None:
    thread = await DaemonThreads().run("weather", threading.current_thread)
    assert (thread.name, thread.daemon) == ("weather", True)


async def test_context_variables_of_the_caller_are_visible() -> None:
    span: contextvars.ContextVar[str] = contextvars.ContextVar("span")
    span.set("parent")
    assert await DaemonThreads().run("read", span.get) == "parent"


async def test_an_error_of_the_work_reaches_the_caller() -> None:
    def fail() -> None:
        raise ValueError("no such city")

    with pytest.raises(ValueError, match="no such city"):
        await DaemonThreads().run("fail", fail)


@pytest.mark.parametrize(
    "leave", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()]
)
async def test_work_cannot_end_the_loop(leave: BaseException) -> None:
    def end() -> None:
        raise leave

    with pytest.raises(RuntimeError, match="'end' raised"):
        await DaemonThreads().run("end", end)
    assert await DaemonThreads().run("next", lambda: 1) == 1


async def test_an_abandoned_thread_is_named_until_it_ends() -> None:
    threads = DaemonThreads()
    started, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    ended: list[threading.Thread] = []

    def hang() -> None:
        ended.append(threading.current_thread())
        loop.call_soon_threadsafe(started.set)
        gate.wait()

    waiter = asyncio.ensure_future(threads.run("hang", hang))
    await started.wait()
    assert threads.stuck() == []
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert threads.stuck() == ["hang"]
    gate.set()
    ended[0].join()
    assert threads.stuck() == []


@pytest.mark.spec("SC-26")
async def test_many_stuck_tools_leave_room_for_the_next() -> None:
    threads, gate = DaemonThreads(), threading.Event()
    stuck = [asyncio.ensure_future(threads.run(f"tool-{n}", gate.wait)) for n in range(32)]
    try:
        assert await DaemonThreads().run("other", lambda: "ran") == "ran"
        assert await threads.run("own", lambda: "ran") == "ran"
    finally:
        gate.set()
        await asyncio.gather(*stuck)


@pytest.mark.spec("SC-26")
def test_a_thread_that_never_returns_keeps_no_process_alive() -> None:
    script = """
import asyncio, threading, time
from perdure.hosts.threads import DaemonThreads

async def main():
    threads = DaemonThreads()
    try:
        await asyncio.wait_for(threads.run("never", threading.Event().wait), 0.05)
    except TimeoutError:
        print(*threads.stuck(), flush=True)

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, timeout=8, text=True
    )
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "never", "")


async def test_an_answer_that_comes_after_the_loop_closed_is_dropped() -> None:
    gate = threading.Event()
    started = threading.Event()
    seen: list[threading.Thread] = []

    def late() -> None:
        seen.append(threading.current_thread())
        started.set()
        gate.wait()

    def one_loop() -> None:
        async def start() -> None:
            waiter = asyncio.ensure_future(DaemonThreads().run("late", late))
            await asyncio.sleep(0)
            started.wait()
            waiter.cancel()
            await asyncio.wait([waiter])

        asyncio.run(start())

    await DaemonThreads().run("loop", one_loop)
    gate.set()
    seen[0].join()
