"""Failures that users of other systems met, as cases: hostile text, numbers and images.

Whatever a tool, a model or a person hands in is repaired or refused at the door; the session goes
on, and nothing invalid leaves it, before a restart or after.
"""

import base64
import json
import struct
from collections.abc import Mapping
from typing import Any

import pytest

import perdure
from perdure.ports import ToolContext
from perdure.providers.script import call, fail, say
from perdure.records.messages import ImagePart, ToolResultMessage
from perdure.testing.strict_wire import refusals
from perdure.toolkits.define import Output
from tests.engine import Engine, Probe
from tests.scenarios.bank import LAST, Case, results_in, text_of


@pytest.fixture
def case(engine: Engine) -> Case:
    return Case(engine)


async def writes_text(case: Case, text: str) -> str:
    """Let a tool write a text; answers what the model is shown, before and after a restart."""

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.write(text)

    root = await case.open([say(call("act")), say("done")], [Probe("act", body=body)])
    assert (await root.prompt("go")).text == "done"
    (shown,) = results_in(case.wire.accepted[1])
    await case.engine.kill()
    await case.open([])
    assert results_in(await case.goes_on()) == [shown]
    return shown


SURROGATES = {
    "half at the end": ("ok \ud83d", "ok \ufffd"),
    "half at the start": ("\udc00 ok", "\ufffd ok"),
    "a file name that is no UTF-8": (b"a\xff.txt".decode(errors="surrogateescape"), "a\ufffd.txt"),
    "a pair in halves": ("\ud83d\ude00", "\U0001f600"),
}


@pytest.mark.spec("BB-36")
@pytest.mark.parametrize(("text", "shown"), SURROGATES.values(), ids=SURROGATES)
async def test_half_a_character_from_a_tool_is_replaced(case: Case, text: str, shown: str) -> None:
    assert await writes_text(case, text) in (shown, shown.replace("\U0001f600", "\ufffd\ufffd"))


@pytest.mark.spec("BB-36")
async def test_half_a_character_from_a_person_or_a_model_is_replaced(case: Case) -> None:
    seen: list[Any] = []

    @perdure.tool
    def note(text: str) -> str:
        """Note."""
        seen.append(text)
        return text

    said = say("half \ud83d", call("note", args_text='{"text": "and \\ud83d"}'))
    root = await case.open([said, say("done \udc00")], [note])
    result = await root.prompt("hello \ud83d")
    assert result.text == "done \ufffd"
    (user, *_) = await case.entries()
    assert text_of(user) == "hello \ufffd"
    assert user.meta.repaired is not None
    assert seen in ([], ["and \ufffd"])
    await case.engine.kill()
    await case.open([])
    await case.goes_on()


@pytest.mark.spec("BB-36")
async def test_a_cut_never_splits_a_character(case: Case) -> None:
    policy = Output(bytes_max=101)

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.write("\U0001f600" * 400)

    root = await case.open(
        [say(call("act")), say("done")], [Probe("act", body=body, output=policy)]
    )
    assert (await root.prompt("go")).text == "done"
    (shown,) = results_in(case.wire.accepted[1])
    assert shown.startswith("\U0001f600" * 25)
    assert "truncated: 1600 bytes total" in shown
    assert "\ufffd" not in shown
    await case.goes_on()


NULS = {
    "wide text": (b"W\0s\0l\0", "W\u2400s\u2400l\u2400"),
    "a mark and a NUL": (b"\xff\xfe\x00", "\ufffd\ufffd\u2400"),
    "six harmless characters": (b"\\u0000", "\\u0000"),
    "seven harmless characters": (b"\\\\u0000", "\\\\u0000"),
}


@pytest.mark.spec("BB-37")
@pytest.mark.parametrize(("raw", "shown"), NULS.values(), ids=NULS)
async def test_a_nul_from_a_tool_is_made_visible(case: Case, raw: bytes, shown: str) -> None:
    assert await writes_text(case, raw.decode(errors="replace")) == shown


@pytest.mark.spec("BB-37")
async def test_a_megabyte_of_noise_from_a_tool_is_kept_in_its_cap(case: Case) -> None:
    noise = bytes(range(256)) * 4096
    shown = await writes_text(case, noise.decode(errors="replace"))
    assert len(shown.encode()) < 70_000
    assert "bytes total" in shown


async def test_ten_megabytes_from_a_tool_are_kept_in_their_cap(case: Case) -> None:
    shown = await writes_text(case, "0123456789abcde\n" * (10 * 1024 * 1024 // 16))
    assert shown.endswith("[truncated: 10485760 bytes total]")
    assert len(shown.encode()) <= 65_536 + 100


@pytest.mark.spec("BB-38")
async def test_nan_from_a_tool_keeps_its_place_in_words(case: Case) -> None:
    @perdure.tool
    def stats() -> dict[str, Any]:
        """Measure."""
        return {"mean": float("nan"), "hi": float("inf"), "rows": [1.5, float("-inf")]}

    root = await case.open([say(call("stats")), say("done")], [stats])
    assert (await root.prompt("go")).text == "done"
    (shown,) = results_in(case.wire.accepted[1])

    def refuse(text: str) -> None:
        raise AssertionError(text)

    found = json.loads(shown, parse_constant=refuse)
    assert found == {"mean": "NaN", "hi": "Infinity", "rows": [1.5, "-Infinity"]}
    await case.engine.kill()
    await case.open([])
    await case.goes_on()


@pytest.mark.spec("BB-38")
async def test_a_typed_value_with_nan_is_refused_with_its_path(case: Case) -> None:
    await case.open([])
    address: perdure.SessionValue[Any] = perdure.SessionValue("test.stats")
    head = case.engine.storage.last_seq
    with pytest.raises(perdure.Rejected) as refused:
        await case.engine.harness.set_value(address, {"rows": [1.5, float("nan")]})
    assert "$.rows[1]" in str(refused.value)
    assert case.engine.storage.last_seq == head
    await case.goes_on()


NUMBERS = [9007199254740993, 1917043659912705296, -7108510333361982070, 2**64, 0.1 + 0.2, 10**300]


@pytest.mark.spec("BB-39")
@pytest.mark.parametrize("number", NUMBERS, ids=str)
async def test_a_number_keeps_its_digits_on_the_whole_way(case: Case, number: Any) -> None:
    seen: list[Any] = []

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        seen.append(args)
        ctx.out.details({"row": {"id": args["id"]}})
        ctx.out.write(json.dumps(args["id"]))

    asked = say(call("act", args_text=f'{{"id": {number!r}, "deep": [{{"id": {number!r}}}]}}'))
    root = await case.open([asked, say("done")], [Probe("act", body=body)])
    assert (await root.prompt("go")).text == "done"
    assert seen == [{"id": number, "deep": [{"id": number}]}]
    assert results_in(case.wire.accepted[1]) == [repr(number)]
    await case.engine.kill()
    await case.open([])
    await case.goes_on()
    stored = [entry for entry in await case.entries() if entry.kind == "tool_result"]
    assert stored[0].payload["message"]["details"] == {"row": {"id": number}}


@pytest.mark.spec("BB-39")
@pytest.mark.parametrize("text", ["1e400", "9" * 5_000], ids=["too large", "too long"])
async def test_a_number_that_cannot_be_kept_is_refused(case: Case, text: str) -> None:
    act = Probe("act")
    root = await case.open([say(call("act", args_text=f'{{"id": {text}}}')), say("done")], [act])
    assert (await root.prompt("go")).text == "done"
    assert not act.runs
    assert [outcome for outcome, _ in await case.results()] == ["notStarted"]
    await case.goes_on()


# BB-40: images.


def png(width: int, height: int, size: int = 0) -> bytes:
    """Answer bytes that begin as a picture does."""
    head = (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", width, height)
    )
    return head + bytes(max(0, size - len(head)))


BAD_IMAGES = {
    "six megabytes": png(10, 10, 6 * 1024 * 1024),
    "nothing": b"",
    "text": b"hello, I am a picture",
    "nine thousand wide": png(9_000, 10),
}


async def shows(case: Case, data: bytes, script: Any) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        encoded = base64.b64encode(data).decode()
        ctx.out.image(ImagePart(mime="image/png", sha256="", data=encoded))

    root = await case.open(script, [Probe("camera", body=body)])
    result = await case.patient(root.prompt("look"))
    assert result.text == "seen", result.error


def images_in(request: Any) -> int:
    return sum(
        isinstance(part, ImagePart)
        for message in request.messages
        if isinstance(message, ToolResultMessage)
        for part in message.content
    )


@pytest.mark.spec("BB-40")
@pytest.mark.parametrize("data", BAD_IMAGES.values(), ids=BAD_IMAGES)
async def test_a_bad_image_is_left_out_at_the_door(case: Case, data: bytes) -> None:
    await shows(case, data, [say(call("camera")), say("seen")])
    request = case.wire.accepted[1]
    assert images_in(request) == 0
    assert "left out" in results_in(request)[0]
    (stored,) = [entry for entry in await case.entries() if entry.kind == "tool_result"]
    assert stored.payload["message"]["toolName"] == "camera"
    await case.engine.kill()
    await case.open([])
    await case.goes_on()


@pytest.mark.spec("BB-40")
async def test_an_image_the_provider_refuses_is_left_out_from_then_on(case: Case) -> None:
    refusing = fail("invalid_request", message="cannot process image", status=400)
    await shows(case, png(10, 10, 100), [say(call("camera")), refusing, say("seen")])
    assert [images_in(request) for request in case.wire.accepted] == [0, 1, 0]
    assert "the provider refused" in results_in(case.wire.accepted[2])[0]
    stored = next(entry for entry in await case.entries() if entry.kind == "tool_result")
    assert [part["type"] for part in stored.payload["message"]["content"]].count("image") == 1
    await case.engine.kill()
    await case.open([])
    request = await case.goes_on()
    assert images_in(request) == 0
    assert not refusals(request)
    assert LAST in str(request.messages[-1])
