"""Streams: frames, leaving, characters in pieces, arguments, usage."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, structs

from perdure.errors import ProviderError
from perdure.providers.streams import TextRepair
from perdure.records.frames import DeltaFrame, Frame, FrameReducer, StartFrame
from perdure.records.messages import (
    AssistantMessage,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    Usage,
    text_message,
)
from perdure.records.models import ModelOutcome
from perdure.records.strict_json import Repairs
from perdure.testing.wire_replies import (
    Wire,
    WireCall,
    WireReply,
    WireText,
    WireThinking,
    WireUsage,
    render,
)
from perdure.testing.wire_server import WireServer
from tests.unit.providers.wires import WIRES, WireName, models_for, play, request

HIGH, LOW = "\ud83d", "\ude00"
GRIN = "😀"


async def replied(wire: WireName, reply: WireReply) -> tuple[Sequence[Frame], ModelOutcome]:
    async with WireServer(reply) as server:
        models, model = models_for(wire, server)
        try:
            return await play(models, request(model))
        finally:
            await models.close()


def message_of(outcome: ModelOutcome) -> AssistantMessage:
    assert isinstance(outcome.result, AssistantMessage)
    return outcome.result


# ----------------------------------------------------------------------------------- leaving


@pytest.mark.spec("PV-06")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("after", [0, 1, -1], ids=["at once", "first event", "text"])
async def test_leaving_closes_the_connection_and_raises_nothing(wire: WireName, after: int) -> None:
    reply = WireReply(parts=(WireText(pieces=("Half", " a")),), hold=True, after=after)
    async with WireServer(reply) as server:
        models, model = models_for(wire, server)
        async with models.stream(request(model)) as stream:
            seen: list[Frame] = []
            while after == -1 and text_of(seen) != "Half a":
                seen.append(await anext(aiter(stream)))
            await server.holding.wait()
        async with asyncio.timeout(1):
            await server.hung_up.wait()
        assert [frame async for frame in stream] == []
        with pytest.raises(ProviderError) as caught:
            await stream.outcome()
        await models.close()
    assert caught.value.code == "interrupted"
    if after == -1:
        partial = caught.value.partial
        assert isinstance(partial, AssistantMessage)
        assert (partial.text, partial.stop) == ("Half a", "aborted")


def text_of(frames: Sequence[Frame]) -> str:
    return "".join(frame.delta_text for frame in frames if isinstance(frame, DeltaFrame))


@pytest.mark.spec("PV-06")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_slow_reader_can_leave_a_full_queue(wire: WireName) -> None:
    pieces = tuple(f"word{number} " for number in range(2_000))
    async with WireServer(WireReply(parts=(WireText(pieces=pieces),))) as server:
        models, model = models_for(wire, server)
        async with models.stream(request(model)) as stream:
            await anext(aiter(stream))
        with pytest.raises(ProviderError, match="closed"):
            await stream.outcome()
        await models.close()


@pytest.mark.spec("PV-12", "PV-06")
@pytest.mark.parametrize("wire", WIRES)
async def test_what_a_left_stream_reported_is_known_and_the_rest_is_not(wire: WireName) -> None:
    reply = WireReply(parts=(WireText(pieces=("Half",)),), hold=True)
    async with WireServer(reply) as server:
        models, model = models_for(wire, server)
        async with models.stream(request(model)) as stream:
            seen = [await anext(aiter(stream))]
            while not text_of(seen):
                seen.append(await anext(aiter(stream)))
        with pytest.raises(ProviderError) as caught:
            await stream.outcome()
        await models.close()
    expected = Usage(input=60, cache_read=40, cache_write=0) if wire == "anthropic" else None
    assert caught.value.usage == expected


# ------------------------------------------------------------------------------------- frames


@pytest.mark.parametrize("wire", WIRES)
async def test_frames_add_up_to_the_reply_and_repeat_nothing(wire: WireName) -> None:
    parts = (
        WireThinking(pieces=("let me ", "think")),
        WireText(pieces=("It ", "is ", "warm.")),
        WireCall(id="c1", name="weather", pieces=('{"ci', 'ty":"Pa', 'ris"}')),
        WireCall(id="c2", name="weather", pieces=('{"city":', '"Rome"}')),
    )
    frames, outcome = await replied(wire, WireReply(parts=parts))
    reducer = FrameReducer()
    for frame in frames:
        reducer.add(frame)
    assert reducer.parts() == message_of(outcome).content
    assert text_of(frames) == "".join(part.whole for part in parts)
    for frame in frames:
        if isinstance(frame, StartFrame) and isinstance(frame.part, ToolCallPart):
            assert frame.part.args_text == ""


@pytest.mark.spec("GN-45")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_call_that_never_ended_takes_its_thinking_along(wire: WireName) -> None:
    parts = (
        WireText(pieces=("First. ",)),
        WireThinking(pieces=("hmm",)),
        WireCall(id="c1", name="weather", pieces=('{"city":"Paris"}',)),
        WireThinking(pieces=("and",)),
        WireCall(id="c2", name="weather", pieces=("{@@", "}")),
    )
    reply = WireReply(parts=parts, end="cut")
    body = render(API_WIRES[wire], reply, reply_id="r", model="m", usage=True).body
    after = next(at for at, event in enumerate(body) if "{@@" in json.dumps(event))
    async with WireServer(structs.replace(reply, after=after + 1)) as server:
        models, model = models_for(wire, server)
        with pytest.raises(ProviderError) as caught:
            await play(models, request(model))
        await models.close()
    partial = caught.value.partial
    assert isinstance(partial, AssistantMessage)
    kept = [type(part) for part in partial.content]
    ended = {
        "openai": [TextPart, ToolCallPart],  # reasoning ends with the reply on this wire
        "anthropic": [TextPart, ThinkingPart, ToolCallPart],
    }
    assert kept == ended.get(wire, [TextPart]), "the chat wire says of no call that it ended"
    assert [call.call_id for call in partial.calls] == (["c1"] if wire in ended else [])


API_WIRES: dict[WireName, Wire] = {
    "openai": "responses",
    "openai-chat": "chat",
    "openai-compatible": "chat",
    "anthropic": "anthropic",
}


@pytest.mark.parametrize("wire", WIRES)
async def test_calls_of_one_id_are_told_apart(wire: WireName) -> None:
    calls = tuple(WireCall(id="same", name="weather", pieces=("{}",)) for _ in range(2))
    _, outcome = await replied(wire, WireReply(parts=calls))
    assert [call.call_id for call in message_of(outcome).calls] == ["same", "same_2"]


@pytest.mark.parametrize("wire", ["openai", "openai-chat", "anthropic"])
async def test_a_tag_in_a_text_stays_text(wire: WireName) -> None:
    said = WireText(pieces=("Write ", "<think>", "so", "</think>"))
    _, outcome = await replied(wire, WireReply(parts=(said,)))
    assert message_of(outcome).content[0].text == said.whole  # type: ignore[union-attr]  # a text


# --------------------------------------------------------------------------------- characters


@pytest.mark.spec("PV-08")
@pytest.mark.filterwarnings("ignore:The provider sent")  # the whole has one character, not two
@pytest.mark.parametrize("wire", WIRES)
async def test_a_split_character_arrives_whole(wire: WireName) -> None:
    parts = (
        WireThinking(pieces=(f"a{HIGH}", f"{LOW}b")),
        WireText(pieces=("c", HIGH, LOW, "d")),
        WireCall(id="c1", name="weather", pieces=(f'{{"city":"{HIGH}', f'{LOW}"}}')),
    )
    frames, outcome = await replied(wire, WireReply(parts=parts))
    thought, text, call = message_of(outcome).content
    assert isinstance(thought, ThinkingPart)
    assert isinstance(text, TextPart)
    assert isinstance(call, ToolCallPart)
    assert (thought.text, text.text) == (f"a{GRIN}b", f"c{GRIN}d")
    assert call.args == {"city": GRIN}
    assert outcome.repaired == Repairs()
    for frame in frames:
        if isinstance(frame, DeltaFrame):
            frame.delta_text.encode()


@pytest.mark.spec("PV-08")
@pytest.mark.parametrize("wire", WIRES)
async def test_an_orphan_is_replaced_and_counted(wire: WireName) -> None:
    parts = (
        WireText(pieces=(f"a{HIGH}", "b", LOW, "\x00", HIGH)),
        WireCall(id="c1", name="weather", pieces=('{"city":"\\ud83d"}',)),
    )
    frames, outcome = await replied(wire, WireReply(parts=parts))
    message = message_of(outcome)
    assert message.text == "a\ufffdb\ufffd\u2400\ufffd"
    assert message.calls[0].args == {"city": "\ufffd"}
    assert outcome.repaired == Repairs(surrogates=4, nul=1)
    assert text_of(frames).startswith(message.text)


@pytest.mark.spec("PV-08")
@given(st.text(st.sampled_from("aé世😀\ud83d\ude00\x00")), st.lists(st.integers(0, 20)))
def test_pieces_give_the_same_text_wherever_they_are_cut(text: str, cuts: list[int]) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    whole = TextRepair()
    expected = whole.add(text) + whole.end()
    repair = TextRepair()
    places = sorted({min(cut, len(units) // 2) for cut in cuts})
    pieces = [
        units[2 * start : 2 * end].decode("utf-16-le", "surrogatepass")
        for start, end in zip([0, *places], [*places, len(units) // 2], strict=True)
    ]
    assert "".join(map(repair.add, pieces)) + repair.end() == expected
    assert repair.repairs == whole.repairs
    expected.encode()


# ---------------------------------------------------------------------------------- arguments


@pytest.mark.spec("PV-09", "FM-06")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "raw",
    [
        '{"a":NaN}', '{"a":1e999}', '{"a":1,}', '{"a":1}{"a":2}', '{"a":1,"a":2}', "[1]", "null",
        '"text"', '{"a":' * 101 + "1" + "}" * 101, '{"path":"a.txt","text":"line 1\nline',
    ],
)  # fmt: skip
async def test_arguments_that_do_not_parse_are_kept_and_never_sent_raw(
    wire: WireName, raw: str
) -> None:
    call = WireCall(id="c1", name="weather", pieces=(raw[:5], raw[5:]))
    good = WireCall(id="c2", name="weather", pieces=('{"city":"Paris"}',))
    async with WireServer(WireReply(parts=(call, good)), WireReply()) as server:
        models, model = models_for(wire, server)
        asked = request(model)
        _, outcome = await play(models, asked)
        message = message_of(outcome)
        bad, fine = message.calls
        assert bad.args is UNSET
        assert bad.args_text == raw
        assert fine.args == {"city": "Paris"}
        answers = [result_of(one.call_id) for one in message.calls]
        await play(models, request(model, *asked.messages, message, *answers))
        await models.close()
        assert server.faults == []
        assert b"INVALID_JSON" not in server.requests[1].raw


def result_of(call_id: str) -> ToolResultMessage:
    content = (TextPart(text="the arguments are not JSON"),)
    return ToolResultMessage(call_id=call_id, tool_name="weather", content=content, is_error=True)


@pytest.mark.parametrize("wire", WIRES)
async def test_big_integers_keep_every_digit_both_ways(wire: WireName) -> None:
    raw = '{"id":1917043659912705296,"big":18446744073709551616,"x":0.1}'
    call = WireCall(id="c1", name="weather", pieces=(raw,))
    async with WireServer(WireReply(parts=(call,)), WireReply()) as server:
        models, model = models_for(wire, server)
        asked = request(model)
        _, outcome = await play(models, asked)
        message = message_of(outcome)
        assert message.calls[0].args == json.loads(raw)
        await play(models, request(model, *asked.messages, message, result_of("c1")))
        await models.close()
        sent = server.requests[1].raw
    assert b"1917043659912705296" in sent
    assert b"18446744073709551616" in sent


# -------------------------------------------------------------------------------------- usage


@pytest.mark.spec("PV-14")
@pytest.mark.parametrize("wire", WIRES)
async def test_stored_input_leaves_the_cache_out(wire: WireName) -> None:
    reported = WireUsage(input=200, cache_read=800, output=50, reasoning=30)
    _, outcome = await replied(wire, WireReply(usage=reported))
    usage = outcome.usage
    assert usage is not None
    assert (usage.input, usage.cache_read, usage.output) == (200, 800, 50)
    assert usage.reasoning == (None if wire == "anthropic" else 30)


@pytest.mark.spec("PV-14")
@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_stored_input_leaves_what_was_written_to_the_cache_out(wire: WireName) -> None:
    reported = WireUsage(input=200, cache_read=800, cache_write=300, output=50)
    _, outcome = await replied(wire, WireReply(usage=reported))
    usage = outcome.usage
    assert usage is not None
    assert (usage.input, usage.cache_read, usage.cache_write) == (200, 800, 300)


@pytest.mark.spec("PV-14")
@pytest.mark.parametrize("wire", ["openai", "openai-chat", "openai-compatible"])
async def test_a_difference_below_zero_is_unknown(wire: WireName) -> None:
    reported = WireUsage(input=-300, cache_read=800, output=50)
    _, outcome = await replied(wire, WireReply(usage=reported))
    usage = outcome.usage
    assert usage is not None
    assert (usage.input, usage.cache_read, usage.output) == (None, 800, 50)


@pytest.mark.spec("PV-12", "BB-41")
@pytest.mark.parametrize("wire", ["openai", "openai-chat", "openai-compatible"])
async def test_no_report_is_no_usage(wire: WireName) -> None:
    _, outcome = await replied(wire, WireReply(usage=None))
    assert outcome.usage is None


@pytest.mark.spec("BB-41", "PV-15")
@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_usage_rides_along_with_a_failure_after_it(wire: WireName) -> None:
    word = "refusal" if wire == "anthropic" else "content_filter"
    async with WireServer(WireReply(finish=word)) as server:
        models, model = models_for(wire, server)
        with pytest.raises(ProviderError) as caught:
            await play(models, request(model, text_message("Hi", 1)))
        await models.close()
    usage = caught.value.usage
    assert isinstance(usage, Usage)
    assert (usage.input, usage.output, usage.cache_read) == (60, 20, 40)


async def test_a_failure_nobody_asks_about_is_quiet() -> None:
    async with WireServer() as server:
        models, model = models_for("openai-chat", server)
        async with models.stream(request(model)) as stream:
            assert [frame async for frame in stream] == []
        await models.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_a_long_reply_costs_what_its_length_says(wire: WireName) -> None:
    pieces = ("word ",) * 4_000
    frames, outcome = await replied(wire, WireReply(parts=(WireText(pieces=pieces),)))
    assert message_of(outcome).text == "word " * 4_000
    assert len(frames) == 4_002
