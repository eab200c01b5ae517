"""Die in the middle of two tool calls by SIGKILL, come back, and count what really happened.

    python examples/crash_and_resume.py [FOLDER]

The first process starts a tool that must not run twice and one that may, and is killed while both
are at work. The second one opens the session and drives. The counter lies outside the store.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import perdure
from perdure.testing.effect_counter import EffectCounter
from perdure.testing.scripted_model import ScriptedModels, call, say

SCRIPT = [say(call("charge", {"key": "o-7"}), call("look", {"key": "o-7"})), say("Understood.")]


async def life(folder: Path, *, dies: bool) -> None:
    """Live once: accept the input, drive it, and die when both tools are at work."""
    effects = EffectCounter(folder / "effects")
    at_work = 0

    async def between() -> None:
        nonlocal at_work
        at_work += 1
        if dies and at_work == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if dies:
            await asyncio.Event().wait()

    tools = [
        effects.tool("charge", replay="never", between=between),
        effects.tool("look", replay="safe", between=between),
    ]
    models = ScriptedModels(SCRIPT, by="transcript")
    async with perdure.open(
        f"sqlite:{folder / 'store.db'}",
        session="shop",
        model="scripted:shop",
        models=models,
        tools=tools,
    ) as harness:
        live = harness.inspect()
        print("live at opening:", [f"{task.kind} {task.status}" for task in live.inflight])
        root = await harness.root()
        result = await root.prompt("Charge o-7.", request_id="o-7")
        for entry in await root.entries():
            if entry.kind == "tool_result":
                print(f"{entry.payload['message']['toolName']}: {entry.meta.outcome}")
        print(f"{result.state}: {result.text}")
        print("executions:", dict(sorted(effects.counts().items())))


def main(folder: Path) -> None:
    """Run the first life in a process of its own, the second one here."""
    first = subprocess.run([sys.executable, __file__, str(folder), "dies"], check=False)
    print("the first process ended with", first.returncode, flush=True)
    perdure.run(life(folder, dies=False))


if __name__ == "__main__":
    place = Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp())
    if sys.argv[2:] == ["dies"]:
        perdure.run(life(place, dies=True))
    else:
        main(place)
