"""One message, one shell command: lived by a child process that is killed, then by the test.

python -m tests.scenarios.shell_story FOLDER
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import perdure
from perdure.harness.conversation import Conversation
from perdure.hosts.clock import SystemClock
from perdure.kinds.permissions import Permissions
from perdure.opening import OpenSession
from perdure.providers.script import Reply, call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.messages import ToolResultMessage, UserMessage
from perdure.records.models import ModelRequest
from perdure.records.seqs import Seq
from perdure.testing.crash_rig.audit import Journal
from perdure.testing.strict_wire import refusals
from perdure.toolkits.shell import shell_tools

BEFORE_KILL = 5
"""Lines the command has written when it says so and the harness is killed."""

COMMAND = f"""
n=0
while [ $n -lt 20 ]; do
  n=$((n+1)); echo "$$ $n" >> lines
  if [ $n -eq {BEFORE_KILL} ]; then echo here > told; fi
  sleep 0.02
done
echo all written; exit 3
"""
"""Appends to `lines` under its own pid; writing to the pipe `told` waits for its reader."""


def reply_to(request: ModelRequest) -> Reply:
    """Ask for the command, then answer."""
    assert not refusals(request)
    newest = request.messages[len(request.messages) - 1]
    if isinstance(newest, UserMessage) and "run it" in str(newest.content):
        return say(call("shell", {"command": COMMAND}))
    return say("told" if isinstance(newest, ToolResultMessage) else "yes")


def opened(folder: Path) -> OpenSession:
    """Open the story's session."""
    return perdure.open(
        f"sqlite:{folder / 'store.db'}",
        session="story",
        model="scripted:story",
        models=ScriptedModels(reply_to, clock=SystemClock()),
        tools=shell_tools(folder),
        permissions=Permissions(yes=True),
    )


async def journal_of(harness: perdure.Harness) -> Journal:
    """Fold the session's commits."""
    return Journal().fold(await harness.commits(after=Seq(0), limit=1_000))


def pids_of(folder: Path) -> Sequence[str]:
    """Answer who wrote each line so far."""
    return [line.split()[0] for line in (folder / "lines").read_text().splitlines()]


async def finish(harness: perdure.Harness) -> Conversation:
    """Drive to idle and have one more message accepted."""
    await harness.drive()
    root = await harness.root()
    assert (await root.prompt("one more")).text == "yes"
    return root


async def live(folder: Path) -> None:
    """Live until killed."""
    async with opened(folder) as harness:
        root = await harness.root()
        await root.prompt("run it", request_id="r")


if __name__ == "__main__":
    perdure.run(live(Path(sys.argv[1])))
