"""What every implementation of the `Models` port owes, one small async check a clause (PV-01).

A check takes a maker: given what the model shall answer, it hands out models that answer so. A
model that cannot be told what to say (a real one) ignores that, and its checks hold whatever it
says. An implementation states without defaults what it can do; a clause about what it cannot is
held to the statement itself: `describe` says so.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_models(check): await check(make_mine)
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET

from perdure.errors import FailureCode, Rejected
from perdure.records.codec import decode, encode
from perdure.records.entries import ModelId
from perdure.records.messages import (
    AssistantMessage,
    ImagePart,
    TextPart,
    ThinkingPart,
    UserMessage,
    text_message,
)
from perdure.records.models import DeferredHandle
from perdure.records.settings import ThinkingLevel
from perdure.records.strict_json import check as check_json
from perdure.testing.models_lab import (
    HANDLE_BYTES_MAX,
    PIXEL,
    TOOL,
    answer,
    ask,
    call,
    deferred,
    drain,
    failed,
    interruption,
    message_of,
    reduced,
    result,
    roomy,
    text_of,
    until_blocked,
)
from perdure.testing.models_lab import Abilities as Abilities
from perdure.testing.models_lab import MakeModels as MakeModels
from perdure.testing.models_lab import Offered as Offered
from perdure.testing.models_lab import Play as Play

Check: TypeAlias = Callable[[MakeModels], Awaitable[None]]


# ---------------------------------------------------------------------------------- describe


async def check_describe_states_the_abilities(make: MakeModels) -> None:
    """`describe` names the model it was asked about, and says what it can do."""
    async with make([]) as offered:
        info = await offered.models.describe(offered.model)
        assert info.model == offered.model
        assert info.images == offered.abilities.images
        assert bool(info.thinking) == offered.abilities.thinking
        assert info.deferred == offered.abilities.deferred
        assert info.context_window is None or info.context_window > 0


async def check_unknown_provider_is_rejected(make: MakeModels) -> None:
    """A provider nobody offers is refused before any request (PV-02)."""
    async with make([]) as offered:
        refusal: Rejected | None = None
        try:
            await offered.models.describe(ModelId(provider="nobody", model_id="x"))
        except Rejected as error:
            refusal = error
        assert refusal is not None, "an unknown provider was described"
        assert refusal.code == "invariant"
        assert "nobody" in refusal.message


# ------------------------------------------------------------------------------------- reply


async def check_frames_add_up_to_the_message(make: MakeModels) -> None:
    """The reply is what its frames add up to, in order, and every part ends (FM-09)."""
    plays = [Play(parts=(TextPart(text="Let me look. "), call("c1", '{"city":"Paris"}')))]
    async with make(plays) as offered:
        frames, outcome = await answer(offered, ask(offered, tools=(TOOL,)))
        message = message_of(outcome)
        assert reduced(frames) == message.content
        assert message.content


async def check_message_is_stamped(make: MakeModels) -> None:
    """A reply names its model and its wire, and is strict JSON."""
    async with make([Play()]) as offered:
        _, outcome = await answer(offered, ask(offered))
        message = message_of(outcome)
        assert message.model == offered.model
        assert message.api
        assert message.error is UNSET
        check_json(msgspec.json.decode(encode(message)))
        assert decode(encode(message), AssistantMessage) == message


async def check_text_arrives(make: MakeModels) -> None:
    """The text comes as it was said, and stops with `stop`."""
    text = "Grüße, 世界 😀."
    async with make([Play(parts=(TextPart(text=text),))]) as offered:
        _, outcome = await answer(offered, ask(offered))
        message = message_of(outcome)
        if offered.abilities.scripted:
            assert message.text == text
            assert message.stop == "stop"
        assert message.stop in ("stop", "length")


async def check_calls_arrive_in_order(make: MakeModels) -> None:
    """Calls keep their order, ids and arguments, and stop with `toolUse` (PV-07)."""
    plays = [Play(parts=(call("c1", '{"city":"Paris"}'), call("c2", '{"city":"Rome"}')))]
    async with make(plays) as offered:
        _, outcome = await answer(offered, ask(offered, tools=(TOOL,)))
        message = message_of(outcome)
        if offered.abilities.scripted:
            assert [one.call_id for one in message.calls] == ["c1", "c2"]
            assert [one.args for one in message.calls] == [{"city": "Paris"}, {"city": "Rome"}]
            assert message.stop == "toolUse"
        assert len({one.call_id for one in message.calls}) == len(message.calls)


async def check_bad_arguments_stay_text(make: MakeModels) -> None:
    """Arguments that do not parse strictly are kept as they came, and mean nothing (PV-09)."""
    bad = ('{"a":1,}', '{"a":NaN}', '{"a":1}{"a":2}', '{"a":1,"a":2}', "[1]", '{"a":"cut')
    for text in bad:
        async with make([Play(parts=(call("c1", text),))]) as offered:
            if not offered.abilities.scripted:
                return
            _, outcome = await answer(offered, ask(offered, tools=(TOOL,)))
            (asked,) = message_of(outcome).calls
            assert asked.args is UNSET, text
            assert asked.args_text == text


async def check_empty_arguments_are_an_object(make: MakeModels) -> None:
    """A call without any argument text has no arguments, which is an object."""
    async with make([Play(parts=(call("c1", "{}"),))]) as offered:
        if offered.abilities.scripted:
            _, outcome = await answer(offered, ask(offered, tools=(TOOL,)))
            (asked,) = message_of(outcome).calls
            assert asked.args == {}


async def check_conversation_goes_on(make: MakeModels) -> None:
    """A reply with calls and its results are accepted as the history of the next request."""
    first = Play(parts=(call("c1", '{"city":"Paris"}'), call("c2", '{"bad')))
    async with make([first, Play(), Play()]) as offered:
        user = text_message("Weather?", 1)
        _, outcome = await answer(offered, ask(offered, user, tools=(TOOL,)))
        message = message_of(outcome)
        results = [result(one) for one in message.calls]
        history = (user, message, *results, text_message("And now?", 2))
        _, outcome = await answer(offered, ask(offered, *history, tools=(TOOL,)))
        assert message_of(outcome).content


async def check_request_is_left_alone(make: MakeModels) -> None:
    """A request's messages are only read."""
    async with make([Play()]) as offered:
        request = ask(offered, text_message("Hi", 1), tools=(TOOL,))
        before = msgspec.json.encode(request.messages)
        await answer(offered, request)
        assert msgspec.json.encode(request.messages) == before


async def check_outcome_can_be_asked_alone(make: MakeModels) -> None:
    """`outcome` without iterating plays the reply to its end, and may be asked again."""
    async with make([Play()]) as offered, offered.models.stream(ask(offered)) as stream:
        first = await stream.outcome()
        assert message_of(first).content
        assert await stream.outcome() == first


async def check_streams_run_side_by_side(make: MakeModels) -> None:
    """Requests of one `Models` do not mix."""
    async with make([Play(), Play(), Play()]) as offered:
        ends = await asyncio.gather(*(answer(offered, ask(offered)) for _ in range(3)))
        for frames, outcome in ends:
            assert reduced(frames) == message_of(outcome).content


# ------------------------------------------------------------------------------------- usage


async def check_usage_is_reported(make: MakeModels) -> None:
    """Usage is what was reported, `input` without the cache (PV-14)."""
    async with make([Play()]) as offered:
        _, outcome = await answer(offered, ask(offered))
        if not offered.abilities.usage:
            assert outcome.usage is None
            return
        usage = outcome.usage
        assert usage is not None
        if offered.abilities.scripted:
            assert (usage.input, usage.output, usage.cache_read) == (60, 20, 40)
        assert (usage.input or 0) + (usage.cache_read or 0) > 0
        assert (usage.output or 0) > 0


async def check_no_report_is_unknown(make: MakeModels) -> None:
    """What was not reported is None, never zero (PV-12)."""
    async with make([Play(usage=None)]) as offered:
        if offered.abilities.scripted:
            _, outcome = await answer(offered, ask(offered))
            usage = outcome.usage
            assert usage is None or usage.output is None


# ---------------------------------------------------------------------------------- thinking


async def check_thinking_returns_unaltered(make: MakeModels) -> None:
    """Thinking comes as a part with what its provider wants back, and is accepted back (PV-18)."""
    parts = (ThinkingPart(text="Let me think."), call("c1", '{"city":"Paris"}'))
    async with make([Play(parts=parts), Play()]) as offered:
        if not (offered.abilities.thinking and offered.abilities.scripted):
            return
        user = text_message("Weather?", 1)
        level: ThinkingLevel = "low"
        request = ask(offered, user, tools=(TOOL,), thinking=level)
        _, outcome = await answer(offered, roomy(request))
        message = message_of(outcome)
        (thought,) = [part for part in message.content if isinstance(part, ThinkingPart)]
        assert thought.text == "Let me think."
        stored = decode(encode(message), AssistantMessage)
        history = (user, stored, *(result(one) for one in stored.calls))
        request = ask(offered, *history, tools=(TOOL,), thinking=level)
        await answer(offered, roomy(request))


async def check_images_are_sent(make: MakeModels) -> None:
    """A model that takes images takes one from a person and one from a tool."""
    async with make([Play(parts=(call("c1", "{}"),)), Play()]) as offered:
        if not (offered.abilities.images and offered.abilities.scripted):
            return
        image = ImagePart(mime="image/png", sha256="0" * 64, data=PIXEL)
        user = UserMessage(content=(TextPart(text="See:"), image), timestamp=1)
        _, outcome = await answer(offered, ask(offered, user, tools=(TOOL,)))
        message = message_of(outcome)
        (asked,) = message.calls
        shown = msgspec.structs.replace(result(asked), content=(TextPart(text="here"), image))
        _, outcome = await answer(offered, ask(offered, user, message, shown, tools=(TOOL,)))
        assert message_of(outcome).content


# ------------------------------------------------------------------------- leaving and failing


async def check_leaving_early_is_quiet(make: MakeModels) -> None:
    """After leaving, no frame comes, nothing escapes, and `outcome` holds what arrived (PV-06)."""
    async with make([Play(parts=(TextPart(text="First words."),), hold=True)]) as offered:
        async with offered.models.stream(ask(offered)) as stream:
            seen = [await anext(aiter(stream))]
            if offered.abilities.holds and offered.abilities.scripted:
                while not text_of(reduced(seen)):
                    seen.append(await anext(aiter(stream)))
        assert [frame async for frame in stream] == []
        error = await interruption(stream)
        arrived = text_of(reduced(seen))
        if arrived:
            assert isinstance(error.partial, AssistantMessage)
            assert error.partial.text.startswith(arrived)
            assert error.partial.stop in ("aborted", "error")


async def check_cancelled_reader_can_leave(make: MakeModels) -> None:
    """Cancelling the one who waits for a frame closes the stream like leaving does."""
    async with make([Play(hold=True)]) as offered:
        if not offered.abilities.holds:
            return
        async with offered.models.stream(ask(offered)) as stream:
            reader = asyncio.ensure_future(drain(stream))
            await until_blocked(reader)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        assert (await interruption(stream)).code == "interrupted"


async def check_failure_is_told_by_outcome(make: MakeModels) -> None:
    """A failing request enters and iterates quietly; `outcome` says which failure it is."""
    codes: tuple[FailureCode, ...] = (
        "rate_limited", "server", "overloaded", "auth", "overflow", "invalid_request"
    )  # fmt: skip
    for code in codes:
        async with make([Play(parts=(), failure=code, usage=None)]) as offered:
            if not offered.abilities.scripted:
                return
            frames, error = await failed(offered, ask(offered))
            assert frames == []
            assert error.code == code, (code, error.code, error.message)
            assert error.partial is None
            assert error.usage is None
            assert error.message


async def check_retry_after_is_passed_on(make: MakeModels) -> None:
    """What the provider asks for is in milliseconds (PV-16)."""
    play = Play(parts=(), failure="rate_limited", retry_after_ms=7_000, usage=None)
    async with make([play]) as offered:
        if offered.abilities.scripted:
            _, error = await failed(offered, ask(offered))
            assert error.retry_after_ms == 7_000


async def check_partial_rides_along(make: MakeModels) -> None:
    """A reply that fails in the middle leaves what had arrived (PV-15)."""
    async with make([Play(parts=(TextPart(text="Half a"),), failure="server")]) as offered:
        if not offered.abilities.scripted:
            return
        frames, error = await failed(offered, ask(offered))
        assert error.code == "server"
        assert isinstance(error.partial, AssistantMessage)
        assert error.partial.text == "Half a"
        assert error.partial.content == reduced(frames)
        assert error.partial.error is not UNSET


async def check_closing_twice_is_harmless(make: MakeModels) -> None:
    """`close` may be repeated."""
    async with make([]) as offered:
        await offered.models.close()
        await offered.models.close()


# ---------------------------------------------------------------------------------- deferred


async def check_deferred_work_is_polled(make: MakeModels) -> None:
    """A handle fits in 4 KiB, works after storing, and ends in the reply (PV-26)."""
    async with make([Play(pending=1)]) as offered:
        if not (offered.abilities.deferred and offered.abilities.scripted):
            return
        handle = await deferred(offered)
        assert len(encode(handle)) <= HANDLE_BYTES_MAX
        stored = decode(encode(handle), DeferredHandle)
        waiting = await offered.models.poll(stored)
        assert isinstance(waiting.result, DeferredHandle)
        again = decode(encode(waiting.result), DeferredHandle)
        outcome = await offered.models.poll(again)
        assert message_of(outcome).text == "Hello there."
        assert outcome.usage is not None


async def check_deferred_cancel_is_harmless(make: MakeModels) -> None:
    """Cancelling ends pending work, and does nothing to work that has ended (PV-26)."""
    async with make([Play(pending=0), Play(pending=5)]) as offered:
        if not (offered.abilities.deferred and offered.abilities.scripted):
            return
        handle = await deferred(offered)
        outcome = await offered.models.poll(handle)
        assert message_of(outcome).content
        await offered.models.cancel(handle)
        pending = await deferred(offered)
        await offered.models.cancel(pending)


CHECKS: Final[tuple[Check, ...]] = (
    check_describe_states_the_abilities,
    check_unknown_provider_is_rejected,
    check_frames_add_up_to_the_message,
    check_message_is_stamped,
    check_text_arrives,
    check_calls_arrive_in_order,
    check_bad_arguments_stay_text,
    check_empty_arguments_are_an_object,
    check_conversation_goes_on,
    check_request_is_left_alone,
    check_outcome_can_be_asked_alone,
    check_streams_run_side_by_side,
    check_usage_is_reported,
    check_no_report_is_unknown,
    check_thinking_returns_unaltered,
    check_images_are_sent,
    check_leaving_early_is_quiet,
    check_cancelled_reader_can_leave,
    check_failure_is_told_by_outcome,
    check_retry_after_is_passed_on,
    check_partial_rides_along,
    check_closing_twice_is_harmless,
    check_deferred_work_is_polled,
    check_deferred_cancel_is_harmless,
)
"""Every clause."""
