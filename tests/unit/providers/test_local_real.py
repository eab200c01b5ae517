"""The real local model: what the README's first command leads to, aborts, sockets, ends."""

import importlib
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perdure.errors import ProviderError
from perdure.hosts.threads import DaemonThreads
from perdure.providers.local import LocalModels
from perdure.providers.local_files import find_local
from perdure.records.entries import ModelId
from perdure.records.frames import DeltaFrame, Frame
from perdure.records.messages import (
    AssistantMessage,
    TextPart,
    ToolResultMessage,
    Usage,
    text_message,
)
from perdure.records.models import ModelOutcome, ModelRequest, ToolSpec
from perdure.records.seqs import Seq
from perdure.toolkits.files import file_tools
from perdure.toolkits.shell import shell_tools
from tests.unit.providers.local_real import SMOL, data_folder, load_kept, needs_model

pytestmark = [needs_model, pytest.mark.timeout(60)]

PROMPT = "List the files in this folder."
"""The README's and the Makefile's."""

LISTING = "LICENSE\nREADME.md\ndocs/\nsrc/\n"


def tools() -> tuple[ToolSpec, ...]:
    """Answer the built-in tools as a request offers them."""
    root = Path.cwd()
    return tuple(
        ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters)
        for tool in (*file_tools(root), *shell_tools(root))
    )


def offered() -> LocalModels:
    """Make models on the warm model."""
    return LocalModels(data_folder(), threads=DaemonThreads(), load=load_kept)


async def play(models: LocalModels, request: ModelRequest) -> tuple[list[Frame], ModelOutcome]:
    """Play a request to its end."""
    async with models.stream(request) as stream:
        frames = [frame async for frame in stream]
        return frames, await stream.outcome()


def message(outcome: ModelOutcome) -> AssistantMessage:
    """Answer the message."""
    assert isinstance(outcome.result, AssistantMessage)
    return outcome.result


async def first_turn() -> tuple[AssistantMessage, AssistantMessage, list[Frame], Usage | None]:
    """Play the README's first turn: a request, one call, its result, an answer."""
    models = offered()
    user = text_message(PROMPT)
    request = ModelRequest(model=SMOL, messages=(user,), tools=tools(), task_id=Seq(2))
    _, outcome = await play(models, request)
    asked = message(outcome)
    (call,) = asked.calls
    content = (TextPart(text=LISTING),)
    result = ToolResultMessage(
        call_id=call.call_id, tool_name=call.name, content=content, is_error=False
    )
    request = ModelRequest(model=SMOL, messages=(user, asked, result), tools=tools())
    frames, outcome = await play(models, request)
    await models.close()
    return asked, message(outcome), frames, outcome.usage


@pytest.mark.spec("PV-24")
async def test_the_first_prompt_leads_to_one_listing_and_a_streamed_answer() -> None:
    asked, answer, frames, usage = await first_turn()
    assert [(call.name, call.args) for call in asked.calls] == [("list", {})]
    assert (asked.stop, answer.calls) == ("toolUse", ())
    assert "README.md" in answer.text
    assert len([frame for frame in frames if isinstance(frame, DeltaFrame)]) > 5
    assert usage is not None
    assert (usage.output or 0) > 5
    assert (usage.input or 0) + (usage.cache_read or 0) > 20


async def test_the_same_turn_is_the_same_twice() -> None:
    first = await first_turn()
    second = await first_turn()
    assert first[:2] == second[:2]


@pytest.mark.spec("PV-24")
@pytest.mark.parametrize("words", ["Tell me a long story.", "word " * 3_000])
async def test_an_abort_frees_the_model_within_a_second(words: str) -> None:
    models = offered()
    request = ModelRequest(model=SMOL, messages=(text_message(words),))
    async with models.stream(request):
        assert await DaemonThreads().run("wait", lambda: becomes(1))
    begun = time.monotonic()
    assert await DaemonThreads().run("wait", lambda: becomes(0))
    assert time.monotonic() - begun < 1
    await models.close()


def becomes(threads: int) -> bool:
    """Wait until so many threads are inside the runtime."""
    kept = load_kept("x").load(find_local(data_folder()), 4_096)
    while kept.inner.threads_inside != threads:
        time.sleep(0.005)
    return True


async def test_a_prompt_above_the_window_is_an_overflow_with_the_window() -> None:
    with pytest.raises(ProviderError) as caught:
        await play(offered(), ModelRequest(model=SMOL, messages=(text_message("word " * 5_000),)))
    assert (caught.value.code, caught.value.window) == ("overflow", 4_096)


async def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    place = tmp_path / "odd.gguf"
    runtime = LocalModels(tmp_path, threads=DaemonThreads(), load=importlib.import_module)
    request = ModelRequest(
        model=ModelId(provider="local", model_id=str(place)), messages=(text_message("x"),)
    )
    for content, words in (
        (b"no model", "is not a GGUF file"),
        (b"GGUF" + bytes(99), "not a model"),
    ):
        place.write_bytes(content)
        with pytest.raises(ProviderError, match=words) as caught:
            await play(runtime, request)
        assert caught.value.code == "no_model"


LEFT_RUNNING = """
import sys, threading
from pathlib import Path
from perdure.providers.local_runtime import Runtime
runtime = Runtime(Path(sys.argv[1]), window=1024)
streaming = threading.Event()
body = {"messages": [{"role": "user", "content": "Tell me a story."}], "stream": True,
        "max_tokens": 900, "temperature": 0}
def chunk(_):
    streaming.set()
    return False
threading.Thread(target=runtime.generate, args=(body, chunk), daemon=True).start()
streaming.wait()
if sys.argv[2] == "sockets":
    for name in ("tcp", "tcp6", "unix"):
        print(name, Path(f"/proc/net/{name}").read_text().replace("\\n", "\\n" + name + " "))
    import os
    print("own", [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                  if os.path.islink(f"/proc/self/fd/{n}")])
"""


def left_running(what: str) -> subprocess.CompletedProcess[str]:
    """Run a process that ends while the model is answering."""
    command = [sys.executable, "-c", LEFT_RUNNING, str(find_local(data_folder())), what]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


def test_a_process_that_ends_while_the_model_answers_ends_well() -> None:
    ended = left_running("nothing")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc to list sockets")
def test_nothing_can_connect_to_the_runtime() -> None:
    lines = left_running("sockets").stdout.splitlines()
    own = set(re.findall(r"socket:\[(\d+)\]", lines[-1]))
    assert own, "the runtime is known to open one"
    for line in lines[:-1]:
        table, *fields = line.split()
        if own & set(fields):
            assert table == "unix", "no internet socket"
            assert not Path(fields[-1]).exists(), "its path is gone"
