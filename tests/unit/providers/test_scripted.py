"""The scripted model: replies by list, text or function; any event can wait, raise or fail."""

import ast
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import ProviderError, Rejected
from perdure.ports import ModelStream
from perdure.providers import script, script_files, scripted
from perdure.providers.script import END, UNLIMITED, Deferred, Reply, call, fail, say, think
from perdure.providers.scripted import ScriptedModels
from perdure.records.codec import encode, to_raw
from perdure.records.entries import ModelId
from perdure.records.frames import DeltaFrame, EndFrame, Frame, FrameReducer, StartFrame
from perdure.records.messages import (
    AssistantMessage,
    Extra,
    Message,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    text_message,
)
from perdure.records.models import DeferredHandle, ModelInfo, ModelOutcome, ModelRequest
from perdure.testing.manual_clock import ManualClock

MODEL = ModelId(provider="scripted", model_id="test")


def ask(*messages: Message | str, **changes: Any) -> ModelRequest:
    """Make a request."""
    asked = [text_message(each) if isinstance(each, str) else each for each in messages]
    return ModelRequest(model=MODEL, messages=asked or [text_message("hi")], **changes)


async def play(models: ScriptedModels, request: ModelRequest) -> tuple[list[Frame], ModelOutcome]:
    """Play a request to its end."""
    async with models.stream(request) as stream:
        frames = [frame async for frame in stream]
        return frames, await stream.outcome()


async def collect(stream: ModelStream, seen: list[Frame]) -> None:
    """Write down frames as they come."""
    async for frame in stream:
        seen.append(frame)  # noqa: PERF401 - kept also when the next one raises


async def gather(models: ScriptedModels, seen: list[Frame]) -> None:
    """Play a request, writing down its frames."""
    async with models.stream(ask()) as stream:
        await collect(stream, seen)
        await stream.outcome()


async def answer(models: ScriptedModels, request: ModelRequest | None = None) -> AssistantMessage:
    """Answer the message of a request."""
    _, outcome = await play(models, request or ask())
    assert isinstance(outcome.result, AssistantMessage)
    return outcome.result


async def failure(models: ScriptedModels, request: ModelRequest | None = None) -> ProviderError:
    """Answer how a request failed."""
    with pytest.raises(ProviderError) as caught:
        await play(models, request or ask())
    return caught.value


@pytest.mark.spec("PV-25")
async def test_replies_are_taken_in_order_and_every_request_is_recorded() -> None:
    models = ScriptedModels([say("one"), say("two")])
    texts = [(await answer(models, ask(word))).text for word in ("a", "b")]
    assert texts == ["one", "two"]
    assert [str(request.messages[0].content[0]) for request in models.requests] == [
        str(TextPart(text="a")),
        str(TextPart(text="b")),
    ]
    assert models.replies_used == 2


@pytest.mark.spec("PV-25")
async def test_an_exhausted_script_fails_naming_the_replies_used() -> None:
    models = ScriptedModels([say("one"), say("two")])
    await answer(models)
    await answer(models)
    error = await failure(models)
    assert error.code == "invalid_request"
    assert "2 replies used" in error.message
    assert len(models.requests) == 3


@pytest.mark.spec("PV-25")
async def test_a_reply_waits_for_the_request_whose_newest_text_matches() -> None:
    result = ToolResultMessage(
        call_id="c", tool_name="t", content=(TextPart(text="17 degrees"),), is_error=False
    )
    models = ScriptedModels(
        [
            say("about degrees", when="degrees"),
            say("always", when="ping", uses=UNLIMITED),
            say("else"),
        ]
    )
    called = AssistantMessage(content=(call("t"),), api="x", model=MODEL, stop="toolUse")
    assert (await answer(models, ask("ping"))).text == "always"
    assert (await answer(models, ask("ping"))).text == "always"
    assert (await answer(models, ask("degrees, old", called, result))).text == "about degrees"
    assert (await answer(models, ask("ping", called, result))).text == "else"
    error = await failure(models, ask("degrees"))
    assert "none of the 1 left matches 'degrees'" in error.message


@pytest.mark.spec("PV-25")
async def test_a_function_answers_by_the_request_without_looking_at_old_messages() -> None:
    class Counted(list[Message]):
        reads = 0

        def __getitem__(self, at: Any) -> Any:
            Counted.reads += 1
            return super().__getitem__(at)

        def __iter__(self) -> Any:
            raise AssertionError("a request's messages are not walked")

    models = ScriptedModels(lambda request: f"{len(request.messages)} messages", record=False)
    request = ModelRequest(model=MODEL, messages=Counted([text_message("x")] * 5_000))
    assert (await answer(models, request)).text == "5000 messages"
    assert Counted.reads == 0
    assert models.requests == []


async def test_a_list_can_be_read_by_the_transcripts_length() -> None:
    replies = [say("first"), say("second")]
    said = AssistantMessage(content=(TextPart(text="first"),), api="x", model=MODEL, stop="stop")
    fresh_process = ScriptedModels(replies, by="transcript")
    assert (await answer(fresh_process, ask("a", said, "b"))).text == "second"
    assert "exhausted" in (await failure(fresh_process, ask("a", said, "b", said, "c"))).message


@pytest.mark.spec("PV-25")
async def test_parts_become_frames_that_reduce_to_the_message() -> None:
    signed = ThinkingPart(
        text="hm", x=Extra(provider_name="p", api_name="a", adapter_version=1,
                           opaque_data=to_raw({"s": "1"}))
    )  # fmt: skip
    usage = Usage(input=3, output=4)
    reply = say(signed, "Hello.", call("go", {"n": 1}), call("go", args_text='{"n":'), usage=usage)
    frames, outcome = await play(ScriptedModels([reply]), ask(task_id=9, attempt=2))
    reducer = FrameReducer()
    for frame in frames:
        reducer.add(frame)
    message = outcome.result
    assert isinstance(message, AssistantMessage)
    assert reducer.parts() == message.content
    assert [part.call_id for part in message.calls] == ["call-9-2-2", "call-9-2-3"]
    assert (message.calls[0].args, message.calls[1].args_text) == ({"n": 1}, '{"n":')
    assert (message.stop, message.api, outcome.usage) == ("toolUse", "scripted", usage)
    assert len(frames) == 3 * 4


async def test_raw_argument_text_goes_through_the_strict_parser() -> None:
    message = await answer(ScriptedModels([say(call("go", args_text='{"a":1}'))]))
    assert message.calls[0].args == {"a": 1}
    bad = await answer(ScriptedModels([say(call("go", args_text='{"a":NaN}'))]))
    assert bad.calls[0].args_text == '{"a":NaN}'


@pytest.mark.spec("PV-25")
async def test_deltas_come_in_pieces_with_delays_on_the_injected_clock() -> None:
    clock = ManualClock()
    models = ScriptedModels([say("abcdef", delay_ms=100, chunk=2)], clock=clock)
    seen: list[Frame] = []

    async def read() -> None:
        async with models.stream(ask()) as stream:
            await collect(stream, seen)

    reading = asyncio.create_task(read())
    for expected in (1, 2, 3):
        await clock.until_asleep()
        assert len(seen) == expected
        clock.advance(100)
    await reading
    assert [frame.delta_text for frame in seen if isinstance(frame, DeltaFrame)] == [
        "ab",
        "cd",
        "ef",
    ]


@pytest.mark.spec("PV-25")
@pytest.mark.parametrize("event", [0, 1, 2, 3, END])
async def test_a_gate_stands_before_any_event(event: int) -> None:
    gate = asyncio.Event()
    arrived = asyncio.Event()

    async def wait() -> None:
        arrived.set()
        await gate.wait()

    models = ScriptedModels([say("text", gates={event: wait})])
    playing = asyncio.create_task(play(models, ask()))
    await arrived.wait()
    assert not playing.done()
    gate.set()
    frames, _ = await playing
    assert len(frames) == 3


@pytest.mark.spec("PV-25")
@pytest.mark.parametrize("event", [0, 1, 2, 3, END])
async def test_an_exception_comes_at_any_event(event: int) -> None:
    models = ScriptedModels([say("text", raises={event: OSError("cut")})])
    seen: list[Frame] = []
    with pytest.raises(OSError, match="cut"):
        await gather(models, seen)
    assert len(seen) == (3 if event in (3, END) else event)


@pytest.mark.spec("PV-25")
async def test_a_failure_carries_its_facts_and_what_had_arrived() -> None:
    usage = Usage(input=5, output=1)
    reply = fail(
        "rate_limited", "Half", call("go", {}), at=4, status=429, retry_after_ms=1_500, window=9
    )
    error = await failure(ScriptedModels([Reply(parts=reply.parts, usage=usage,
                                                failure=reply.failure)]))  # fmt: skip
    assert (error.code, error.status, error.retry_after_ms, error.window) == (
        "rate_limited", 429, 1_500, 9,
    )  # fmt: skip
    assert error.usage == usage
    partial = error.partial
    assert isinstance(partial, AssistantMessage)
    assert (partial.text, partial.calls, partial.stop) == ("Half", (), "error")


async def test_a_failure_before_the_first_frame_has_no_partial() -> None:
    error = await failure(ScriptedModels([fail("overloaded")]))
    assert (error.code, error.partial, error.usage) == ("overloaded", None, None)


async def test_leaving_early_is_an_interruption_with_what_had_arrived() -> None:
    models = ScriptedModels([say("abc", chunk=1, usage_early=Usage(input=7))])
    async with models.stream(ask()) as stream:
        frames = aiter(stream)
        assert isinstance(await anext(frames), StartFrame)
        assert isinstance(await anext(frames), DeltaFrame)
    with pytest.raises(ProviderError) as caught:
        await stream.outcome()
    partial = caught.value.partial
    assert isinstance(partial, AssistantMessage)
    assert (caught.value.code, partial.text, partial.stop) == ("interrupted", "a", "aborted")
    assert caught.value.usage == Usage(input=7)


@pytest.mark.spec("PV-25")
async def test_a_cancellation_is_honoured_between_pieces() -> None:
    models = ScriptedModels([say("abcdefgh", chunk=1)])
    seen: list[Frame] = []

    async def read() -> None:
        async with models.stream(ask()) as stream:
            async for frame in stream:
                seen.append(frame)
                if len(seen) == 3:
                    reading.cancel()

    reading = asyncio.create_task(read())
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert len(seen) == 3


@pytest.mark.spec("PV-25")
async def test_a_deferred_reply_is_pending_for_its_polls() -> None:
    reply = say("late", usage=Usage(output=2), deferred=Deferred(polls=2, poll_after_ms=50))
    models = ScriptedModels([reply])
    _, outcome = await play(models, ask())
    handle = outcome.result
    assert isinstance(handle, DeferredHandle)
    assert handle.poll_after_ms == 50
    assert len(encode(handle)) <= 4_096
    for _ in range(2):
        assert isinstance((await models.poll(handle)).result, DeferredHandle)
    last = await models.poll(handle)
    assert isinstance(last.result, AssistantMessage)
    assert (last.result.text, last.usage) == ("late", Usage(output=2))
    assert len(models.polls) == 3


async def test_another_process_answers_a_stored_handle() -> None:
    models = ScriptedModels([say("late", call("go"), deferred=Deferred(polls=1))])
    _, outcome = await play(models, ask(task_id=4))
    assert isinstance(outcome.result, DeferredHandle)
    pending = await models.poll(outcome.result)
    assert isinstance(pending.result, DeferredHandle)
    other = ScriptedModels([])
    message = (await other.poll(pending.result)).result
    assert isinstance(message, AssistantMessage)
    assert (message.text, message.calls[0].call_id) == ("late", "call-4-1-1")


async def test_a_poll_can_fail_wait_and_be_cancelled() -> None:
    gate = asyncio.Event()
    later = Deferred(
        polls=0,
        failures={1: script.Failure(code="server", message="try again")},
        gates={2: gate.wait},
    )
    models = ScriptedModels([say("late", deferred=later)])
    _, outcome = await play(models, ask())
    handle = outcome.result
    assert isinstance(handle, DeferredHandle)
    with pytest.raises(ProviderError, match="try again"):
        await models.poll(handle)
    polling = asyncio.create_task(models.poll(handle))
    await asyncio.sleep(0)
    assert not polling.done()
    gate.set()
    assert isinstance((await polling).result, AssistantMessage)
    await models.cancel(handle)
    with pytest.raises(ProviderError, match="cancelled"):
        await models.poll(handle)


async def test_exact_frames_can_be_given() -> None:
    frames = (
        StartFrame(part_index=0, part=ToolCallPart(call_id="c", name="go", args_text="")),
        DeltaFrame(part_index=0, delta_text='{"a"'),
        DeltaFrame(part_index=0, delta_text=":1}"),
        EndFrame(part_index=0),
    )
    message = await answer(ScriptedModels([Reply(frames=frames)]))
    assert message.calls[0].args == {"a": 1}


async def test_what_a_script_can_do_is_described() -> None:
    can = ModelInfo(model=MODEL, context_window=1_000, images=True)
    other = ModelId(provider="scripted", model_id="other")
    assert await ScriptedModels([], can=can).describe(other) == ModelInfo(
        model=other, context_window=1_000, images=True
    )
    with pytest.raises(Rejected, match="'openai'"):
        await ScriptedModels([]).describe(ModelId(provider="openai", model_id="x"))


@pytest.mark.spec("PV-25")
@pytest.mark.parametrize("module", [script, scripted, script_files])
def test_nothing_but_the_standard_library_and_msgspec_is_imported(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    named = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    roots = {name.partition(".")[0] for name in named}
    assert roots <= {*sys.stdlib_module_names, "msgspec", "perdure"}


def _thoughts(parts: Sequence[object]) -> list[str]:
    return [part.text for part in parts if isinstance(part, ThinkingPart)]


async def test_thinking_is_a_part_like_any_other() -> None:
    message = await answer(ScriptedModels([say(think("why"), "so")]))
    assert (_thoughts(message.content), message.text) == (["why"], "so")
