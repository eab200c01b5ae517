"""A session connects to nobody: every socket it opens would be heard of here (SX-11)."""

import subprocess
import sys
from pathlib import Path

import pytest

SESSION = '''
import sys, pathlib
heard = []

def hook(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        if not isinstance(args[1], (str, bytes)):  # a path is a private Unix socket
            heard.append((event, args[1]))
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        heard.append((event, args[0]))

sys.addaudithook(hook)

import perdure
from perdure.providers.script import call, say
from perdure.providers.scripted import ScriptedModels
from perdure.kinds.permissions import Permissions
from perdure.toolkits import file_tools, shell_tools

@perdure.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

async def main(folder):
    replies = [
        say(call("add", {"a": 1, "b": 2}), call("shell", {"command": "echo hi"})),
        say("done"),
        say("again"),
    ]
    store = f"sqlite:{folder}/store.db"
    tools = [add, *shell_tools(folder), *file_tools(folder)]
    for prompt in ("one", "two"):
        async with perdure.open(
            store, session="s", model="scripted:x", tools=tools,
            models=ScriptedModels(replies, by="transcript"), permissions=Permissions(yes=True),
        ) as harness:
            root = await harness.root()
            result = await root.prompt(prompt)
            assert result.state == "answered", result
            outcomes = [e.meta.outcome for e in await root.entries() if e.kind == "tool_result"]
            assert outcomes == ["finished"] * 2, outcomes
            await harness.usage_totals()
            await harness.commits()

perdure.run(main(sys.argv[1]))
print("heard", heard)
'''


@pytest.mark.spec("SX-11")
def test_a_whole_session_opens_no_connection(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "heard []"
