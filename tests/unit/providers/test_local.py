"""The local model behind the port, on a stand-in for its runtime."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import ProviderError, Rejected
from perdure.hosts.threads import DaemonThreads
from perdure.ports import ModelStream
from perdure.providers.local import LocalModels
from perdure.providers.local_files import MODEL_BYTES, local_place
from perdure.records.codec import to_raw
from perdure.records.entries import ModelId
from perdure.records.frames import DeltaFrame, Frame
from perdure.records.messages import AssistantMessage, Usage, text_message
from perdure.records.models import DeferredHandle, ModelInfo, ModelOutcome, ModelRequest, ToolSpec
from tests.unit.providers.local_fake import NOT_A_MODEL, FakeModule, FakeRuntime, text

SMOL = ModelId(provider="local", model_id="smollm2")
LIST = ToolSpec(
    name="list",
    description="List a folder.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": []},
)
CALL = '{"tool": "list", "arguments": {}}'


class House:
    """Local models, the stand-in behind them, and the folder with the file."""

    def __init__(self, folder: Path, *replies: Any) -> None:
        self.runtime = FakeRuntime(replies)
        self.module = FakeModule(self.runtime)
        self.models = LocalModels(folder, threads=DaemonThreads(), load=self.module.load_module)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a data folder with a file of the model's length."""
    place = local_place(tmp_path)
    place.parent.mkdir()
    with place.open("wb") as file:
        file.truncate(MODEL_BYTES)
    return tmp_path


def ask(words: str = "Hello", **changes: Any) -> ModelRequest:
    """Make a request."""
    return ModelRequest(**{"model": SMOL, "messages": (text_message(words),), **changes})


async def play(models: LocalModels, request: ModelRequest) -> tuple[list[Frame], ModelOutcome]:
    """Play a request to its end."""
    async with models.stream(request) as stream:
        frames = [frame async for frame in stream]
        return frames, await stream.outcome()


async def message(models: LocalModels, request: ModelRequest) -> AssistantMessage:
    """Answer the message of a request."""
    result = (await play(models, request))[1].result
    assert isinstance(result, AssistantMessage)
    return result


async def failure(models: LocalModels, request: ModelRequest) -> ProviderError:
    """Answer how a request failed."""
    with pytest.raises(ProviderError) as caught:
        await play(models, request)
    return caught.value


async def happens(event: threading.Event) -> bool:
    """Wait for something on the runtime's thread, at most a second: an abort's limit."""
    return await DaemonThreads().run("wait", lambda: event.wait(1))


@pytest.mark.spec("PV-24")
async def test_text_streams_and_usage_is_the_runtimes_own_count(folder: Path) -> None:
    house = House(folder, text("Hel", "lo"))
    frames, outcome = await play(house.models, ask())
    assert [frame.delta_text for frame in frames if isinstance(frame, DeltaFrame)] == ["Hel", "lo"]
    assert isinstance(outcome.result, AssistantMessage)
    assert (outcome.result.text, outcome.result.stop) == ("Hello", "stop")
    assert outcome.usage == Usage(input=5, output=2, cache_read=4, cache_write=0, reasoning=0)
    await house.models.close()
    assert house.runtime.closed


@pytest.mark.spec("PV-24")
async def test_the_same_request_gets_the_same_answer_by_default(folder: Path) -> None:
    house = House(folder, text("a"), text("a"))
    await play(house.models, ask())
    options = to_raw({"temperature": 0.5, "seed": 7, "max_tokens": 9, "top_p": 0.9})
    await play(house.models, ask(options=options))
    plain, told = house.runtime.bodies
    assert (plain["temperature"], plain["seed"]) == (0.0, 1)
    assert (told["temperature"], told["seed"], told["max_tokens"], told["top_p"]) == (
        0.5, 7, 9, 0.9,
    )  # fmt: skip


@pytest.mark.spec("PV-24")
async def test_a_call_is_made_by_the_schema(folder: Path) -> None:
    house = House(folder, text(*CALL))
    made = await message(house.models, ask("List it.", tools=(LIST,), task_id=7))
    assert (made.stop, made.calls[0].name, made.calls[0].args) == ("toolUse", "list", {})
    assert made.calls[0].call_id == "call-7-1-0"
    assert "tools" not in house.runtime.bodies[0]
    assert house.runtime.bodies[0]["response_format"]["type"] == "json_schema"


async def test_a_call_cut_at_the_limit_keeps_its_raw_text(folder: Path) -> None:
    house = House(folder, text('{"tool": "list", "arguments": {"pa', finish="length"))
    made = await message(house.models, ask("List it.", tools=(LIST,)))
    assert (made.stop, made.stop_detail, made.calls[0].args_text) == ("length", "length", '{"pa')


async def test_a_reply_in_circles_is_cut_and_says_so(folder: Path) -> None:
    house = House(folder, text(*["so it is, "] * 50))
    house.runtime.hold_after = 20
    made = await message(house.models, ask())
    assert made.text == "so it is, " * 3
    assert (made.stop, made.stop_detail) == ("length", "repeats itself")
    await house.models.close()
    assert house.runtime.stopped.is_set()


async def test_a_brought_model_may_repeat_itself(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "own.gguf"
    place.write_bytes(b"GGUF")
    house = House(folder, text(*["so it is, "] * 50))
    own = ModelId(provider="local", model_id=str(place))
    made = await message(house.models, ask(model=own))
    assert made.text == "so it is, " * 50
    assert house.module.loads[0][1] == place


async def first_frame(stream: ModelStream) -> AsyncIterator[Frame]:
    """Read up to the first delta and hand back the rest."""
    frames = aiter(stream)
    while not isinstance(await anext(frames), DeltaFrame):
        pass
    return frames


@pytest.mark.spec("PV-24")
async def test_leaving_stops_the_runtime_and_keeps_what_had_arrived(folder: Path) -> None:
    house = House(folder, text("Hal", "lo"), text("next"))
    house.runtime.hold_after = 3
    async with house.models.stream(ask()) as stream:
        await first_frame(stream)
    assert await happens(house.runtime.go_on)
    with pytest.raises(ProviderError) as caught:
        await stream.outcome()
    partial = caught.value.partial
    assert isinstance(partial, AssistantMessage)
    assert (caught.value.code, partial.text, partial.stop) == ("interrupted", "Hal", "aborted")
    assert caught.value.usage == Usage(input=5, output=1, cache_read=4, cache_write=0, reasoning=0)
    assert (await message(house.models, ask())).text == "next"


@pytest.mark.spec("PV-24")
async def test_a_cancelled_reader_leaves_at_once_and_the_thread_comes_out(folder: Path) -> None:
    house = House(folder, text("Hal", "lo"))
    house.runtime.hold_after = 3
    read = asyncio.Event()

    async def reader() -> None:
        async with house.models.stream(ask()) as stream:
            frames = await first_frame(stream)
            read.set()
            await anext(frames)

    reading = asyncio.create_task(reader())
    await read.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await house.models.close()
    assert house.runtime.stopped.is_set()


async def test_requests_take_turns_and_a_waiting_one_may_leave(folder: Path) -> None:
    house = House(folder, text("one"), text("three"))
    house.runtime.hold_after = 0
    first = asyncio.create_task(message(house.models, ask()))
    second = asyncio.create_task(message(house.models, ask()))
    assert await happens(house.runtime.started)
    third = asyncio.create_task(message(house.models, ask()))
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    house.runtime.go_on.set()
    assert [(await first).text, (await third).text] == ["one", "three"]
    assert len(house.runtime.bodies) == 2


@pytest.mark.spec("PV-24")
async def test_weights_are_loaded_once_in_a_thread_at_the_first_need(folder: Path) -> None:
    house = House(folder, text("a"), text("b"))
    assert house.module.loads == []
    house.models.begin(SMOL)
    await play(house.models, ask())
    await play(house.models, ask())
    assert house.module.loads == [("load local:smollm2", local_place(folder))]


@pytest.mark.spec("PV-24")
async def test_a_missing_runtime_is_one_sentence_with_the_step(folder: Path) -> None:
    house = House(folder)
    house.module.failures = [ImportError("No module named 'xllamacpp'")]
    error = await failure(house.models, ask())
    assert error.code == "no_model"
    assert error.message == (
        "the local model needs its runtime (No module named 'xllamacpp'); "
        "run: pip install 'perdure[local]'"
    )


@pytest.mark.spec("PV-24")
async def test_a_missing_file_is_one_sentence_with_the_step(tmp_path: Path) -> None:
    house = House(tmp_path)
    error = await failure(house.models, ask())
    place = local_place(tmp_path)
    assert (error.code, error.message) == (
        "no_model",
        f"the local model's file is not at {place}; run: perdure models fetch local",
    )


async def test_a_half_file_is_not_taken_for_the_model(folder: Path) -> None:
    local_place(folder).write_bytes(b"GGUF")
    assert "perdure models fetch local" in (await failure(House(folder).models, ask())).message


@pytest.mark.parametrize("name", ["nothing.gguf", "llama3", "x/y.bin"])
async def test_another_name_is_no_local_model(folder: Path, name: str) -> None:
    other = ModelId(provider="local", model_id=name)
    error = await failure(House(folder).models, ask(model=other))
    assert (error.code, repr(name) in error.message) == ("no_model", True)


async def test_a_failed_load_is_tried_again(folder: Path) -> None:
    house = House(folder, text("now"))
    house.module.failures = [NOT_A_MODEL]
    assert "not a GGUF file" in (await failure(house.models, ask())).message
    assert (await message(house.models, ask())).text == "now"


async def test_a_load_nobody_asked_about_fails_silently_until_it_is_needed(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.models.begin(SMOL)
    await house.models.close()


@pytest.mark.parametrize(
    ("chunk", "code", "window"),
    [
        ({"type": "exceed_context_size_error", "code": 400, "n_ctx": 4096}, "overflow", 4096),
        ({"type": "invalid_request_error", "code": 400}, "invalid_request", None),
        ({"type": "unavailable_error", "code": 503}, "server", None),
    ],
)
async def test_errors_of_the_runtime_are_classed(
    folder: Path, chunk: dict[str, Any], code: str, window: int | None
) -> None:
    house = House(folder, [{"error": {**chunk, "message": "no"}}])
    error = await failure(house.models, ask())
    assert (error.code, error.window, error.message) == (code, window, "local model: no")


async def test_a_reply_without_an_end_is_a_cut_stream(folder: Path) -> None:
    error = await failure(House(folder, text("Hal")[:-1]).models, ask())
    assert error.code == "stream_ended"
    assert isinstance(error.partial, AssistantMessage)
    assert error.partial.text == "Hal"


async def test_a_defect_of_the_runtime_fails_the_request_by_name(folder: Path) -> None:
    error = await failure(House(folder, ValueError("odd")).models, ask())
    assert (error.code, "ValueError: odd" in error.message) == ("invalid_request", True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"thinking": "high"}, "'high' is not accepted"),
        ({"options": to_raw({"top_k": 3})}, "temperature, seed, top_p, max_tokens"),
        ({"options": to_raw({"seed": "x"})}, "accepted"),
    ],
)
async def test_what_the_model_lacks_is_refused_before_it_runs(
    folder: Path, changes: dict[str, Any], words: str
) -> None:
    house = House(folder)
    error = await failure(house.models, ask(**changes))
    assert (error.code, words in error.message) == ("invalid_request", True)
    assert house.runtime.bodies == []


async def test_it_says_what_it_can_do(folder: Path) -> None:
    models = House(folder).models
    assert await models.describe(SMOL) == ModelInfo(
        model=SMOL, context_window=4_096, output_limit=192
    )
    with pytest.raises(Rejected, match="'openai'"):
        await models.describe(ModelId(provider="openai", model_id="x"))
    handle = DeferredHandle(provider="local", model_id="smollm2", api="x", id="h")
    with pytest.raises(ProviderError, match="'h'"):
        await models.poll(handle)
    await models.cancel(handle)
