"""Eight processes, each with a session of its own in one file, beside a rude outsider.

    python -m tests.scenarios.crowd_story FILE

The parent imports everything, forks the eight, and holds a write lock for three seconds of their
time. It prints one line a process: its exit code, turns answered, and results that speak of locks.
"""

import asyncio
import os
import sqlite3
import sys
import threading
import traceback
from pathlib import Path

import perdure
from perdure.hosts.clock import SystemClock
from perdure.providers.script import Reply, call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.messages import ToolResultMessage
from perdure.records.models import ModelRequest

PROCESSES = 8
TURNS = 7
"""Each turn of one call is five commits or more: well over twenty a process."""

RUDE_S = 3.0


def reply_to(request: ModelRequest) -> Reply:
    newest = request.messages[len(request.messages) - 1]
    return say("done" if isinstance(newest, ToolResultMessage) else call("act"))


@perdure.tool
async def act() -> str:
    """Act."""
    return "acted"


async def live(place: Path, number: int) -> str:
    async with perdure.open(
        f"sqlite:{place}",
        session=f"s{number}",
        model="scripted:crowd",
        models=ScriptedModels(reply_to, clock=SystemClock()),
        tools=[act],
    ) as harness:
        root = await harness.root()
        answered = 0
        for _ in range(TURNS):
            answered += (await root.prompt("go")).state == "answered"
        locked = [
            entry
            for entry in await root.entries(limit=1_000)
            if b"locked" in bytes(entry.payload_json or b"")
        ]
        commits = len(await harness.commits(after=perdure.Seq(0), limit=1_000))
    return f"{answered} {len(locked)} {commits}"


def child(place: Path, number: int, told: int) -> None:
    try:
        os.write(told, f"0 {asyncio.run(live(place, number))}\n".encode())
    except Exception:  # noqa: BLE001 - said on standard error, then the child ends
        traceback.print_exc()
        os.write(told, b"1\n")
    finally:
        os._exit(0)


def main(place: Path) -> None:
    async def make() -> None:
        async with perdure.open(
            f"sqlite:{place}", session="first", model="scripted:x", models=ScriptedModels([])
        ):
            pass

    end, told = os.pipe()
    maker = os.fork()
    if maker == 0:
        asyncio.run(make())
        os._exit(0)
    os.waitpid(maker, 0)
    pids = []
    for number in range(PROCESSES):
        pid = os.fork()
        if pid == 0:
            child(place, number, told)
        pids.append(pid)
    rude = sqlite3.connect(place, timeout=30, isolation_level=None)
    rude.execute("BEGIN IMMEDIATE")
    threading.Event().wait(RUDE_S)
    rude.execute("ROLLBACK")
    rude.close()
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(told)
    with os.fdopen(end) as answers:
        sys.stdout.write(answers.read())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
