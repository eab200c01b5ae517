"""A process that owns a session while a tool of it runs.

    python -m tests.scenarios.owner_story FOLDER

The tool writes to the pipe `told` and then waits for the pipe `go`; both wait for the test.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import perdure
from perdure.hosts.clock import SystemClock
from perdure.opening import OpenSession
from perdure.ports import Tool
from perdure.providers.script import Reply, call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.messages import ToolResultMessage
from perdure.records.models import ModelRequest

SESSION = "owned"
DONE = "the owner answered"


def reply_to(request: ModelRequest) -> Reply:
    newest = request.messages[len(request.messages) - 1]
    return say(DONE if isinstance(newest, ToolResultMessage) else call("hold"))


def tools(folder: Path) -> Sequence[Tool]:
    @perdure.tool
    def hold() -> str:
        """Hold the session until told to go on."""
        (folder / "told").write_text("here")
        return (folder / "go").read_text()

    return (hold,)


def opened(folder: Path, place: Path) -> OpenSession:
    """Open the story's session by a spelling of its file."""
    return perdure.open(
        f"sqlite:{place}",
        session=SESSION,
        model="scripted:owner",
        models=ScriptedModels(reply_to, clock=SystemClock()),
        tools=tools(folder),
    )


async def live(folder: Path) -> None:
    async with opened(folder, folder / "store.db") as harness:
        root = await harness.root()
        result = await root.prompt("hold it")
        assert result.text == DONE


if __name__ == "__main__":
    perdure.run(live(Path(sys.argv[1])))
