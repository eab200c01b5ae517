"""Secrets that perdure resolved never come back in what is stored or sent (SX-05)."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from perdure.errors import ToolFailed
from perdure.kinds.secrets import SECRETS_MAX, SecretFrames, Secrets
from perdure.ports import ToolContext
from perdure.providers.script import Failure, call, say
from perdure.records.codec import encode
from perdure.records.frames import DeltaFrame, EndFrame, StartFrame
from perdure.records.messages import AssistantMessage, Extra, MessageError, TextPart, ThinkingPart
from perdure.records.models import parse_model
from perdure.toolkits.define import Output
from tests.engine import Engine, Gate, Probe, is_main

KEY = "sk-live-0123456789"
QUOTED = 'pass"word\\ü-long'
MARK = "[secret KEY]"
TWINS = Secrets({"A": "abababab", "B": "ababababba", "C": "babbabba"})


def known() -> Secrets:
    return Secrets({"KEY": KEY, "QUOTED": QUOTED})


@given(st.lists(st.text(alphabet="ab", max_size=12), max_size=12))
@pytest.mark.spec("SX-05")
def test_any_borders_of_chunks_give_what_the_whole_text_gives(chunks: list[str]) -> None:
    stream = TWINS.stream()
    streamed = "".join([*map(stream.feed, chunks), stream.rest()])
    assert (streamed, stream.count) == TWINS.text("".join(chunks))


def test_short_texts_and_unknown_ones_stay() -> None:
    secrets = Secrets({"SHORT": "1234567", "EMPTY": ""})
    assert not secrets
    assert secrets.text("1234567") == ("1234567", 0)
    assert secrets.stream().feed("12345") == "12345"


def test_only_the_newest_are_kept() -> None:
    secrets = Secrets()
    for number in range(SECRETS_MAX + 5):
        secrets.note("KEY", f"key-number-{number:04}")
    assert repr(secrets) == f"<{SECRETS_MAX} secrets>"
    assert secrets.text("key-number-0000") == ("key-number-0000", 0)
    assert secrets.text(f"key-number-{SECRETS_MAX + 4:04}")[1] == 1


def test_a_value_loses_secrets_in_texts_and_keys_whatever_json_makes_of_them() -> None:
    value = {KEY: [f"a{KEY}b{KEY}", QUOTED, 7, None], "args": f'{{"q":"{QUOTED}"}}'}
    fixed, count = known().value(value)
    assert fixed == {
        MARK: [f"a{MARK}b{MARK}", "[secret QUOTED]", 7, None],
        "args": '{"q":"[secret QUOTED]"}',
    }
    assert count == 5
    raw = encode({"q": QUOTED}).decode()
    assert known().text(raw) == ('{"q":"[secret QUOTED]"}', 1)


def test_thinking_that_lost_words_loses_its_signature() -> None:
    x = Extra(provider_name="p", api_name="a", adapter_version=1, opaque_data=b"1")  # type: ignore[arg-type]
    parts = (ThinkingPart(text=f"the key is {KEY}", x=x), ThinkingPart(text="fine", x=x))
    (changed, kept), _ = known().parts(parts)
    assert isinstance(changed, ThinkingPart)
    assert (changed.text, changed.x) == (f"the key is {MARK}", UNSET)
    assert kept == parts[1]


def test_an_error_that_quotes_a_secret_is_stored_without_it() -> None:
    message = AssistantMessage(
        content=(),
        api="x",
        model=parse_model("a:b"),
        stop="error",
        error=MessageError(code="auth", message=f"bad key {KEY}"),
    )
    fixed, count = known().message(message)
    assert fixed.error == MessageError(code="auth", message=f"bad key {MARK}")
    assert count == 1


@pytest.mark.spec("SX-05")
def test_frames_hold_back_what_may_become_a_secret_until_the_part_ends() -> None:
    frames = SecretFrames(known())
    shown = [
        *frames.feed(StartFrame(part_index=0, part=TextPart(text=""))),
        *frames.feed(DeltaFrame(part_index=0, delta_text=f"it is {KEY[:5]}")),
        *frames.feed(DeltaFrame(part_index=0, delta_text=KEY[5:])),
        *frames.feed(DeltaFrame(part_index=0, delta_text=KEY[:9])),
        *frames.feed(EndFrame(part_index=0)),
    ]
    texts = [frame.delta_text for frame in shown if isinstance(frame, DeltaFrame)]
    assert texts == ["it is ", MARK, KEY[:9]]
    assert isinstance(shown[-1], EndFrame)


def stored(engine: Engine) -> bytes:
    return b"".join([encode(commit) for commit in engine.storage.commits_made])


@pytest.mark.spec("SX-05")
async def test_no_door_of_a_call_stores_or_sends_a_secret(engine: Engine) -> None:
    async def leak(args: Mapping[str, Any], ctx: ToolContext) -> object:
        for piece in (KEY[:3], KEY[3:11], KEY[11:], " and ", QUOTED):
            ctx.out.write(piece)
        await ctx.out.progress({"so far": KEY})
        ctx.out.details({"header": f"Bearer {KEY}"})
        if args.get("raises"):
            raise ToolFailed(f"refused: {KEY}")
        return None

    script = [say(call("leak"), call("leak", {"raises": True})), say("done")]
    root = await engine.root(script, tools=[Probe("leak", body=leak)], secrets=known())
    result = await root.prompt("go")
    assert result.text == "done"
    everything = stored(engine) + repr(engine.models.requests).encode()
    assert KEY.encode() not in everything
    assert b"word" not in everything
    assert MARK.encode() in everything
    entries = [one for one in await root.entries() if one.kind == "tool_result"]
    counts = sorted(entry.meta.repaired.secrets for entry in entries if entry.meta.repaired)
    # Written twice over, details, progress; the error's own words too.
    assert counts == [4, 5]


@pytest.mark.spec("SX-05")
async def test_what_a_model_says_is_stored_and_shown_without_secrets(engine: Engine) -> None:
    shown: list[object] = []
    script = [
        say(f"use {KEY}", call("probe", {"token": KEY}), chunk=4),
        say(f"I saw {KEY}."),
        say(f"half {KEY}", failure=Failure(code="auth", message=f"no: {KEY}", at=3), chunk=5),
    ]
    root = await engine.root(script, tools=[Probe("probe")], secrets=known())
    engine.harness.on_preview(lambda *facts: shown.append(facts))
    assert (await root.prompt("go")).text == f"I saw {MARK}."
    entry = next(one for one in await root.entries() if one.kind == "assistant")
    assert entry.meta.repaired
    assert entry.meta.repaired.secrets == 2
    failed = await root.prompt("again")
    assert failed.error
    assert failed.error.message == f"no: {MARK}"
    everything = stored(engine) + repr((engine.models.requests, shown)).encode()
    assert KEY.encode() not in everything


@pytest.mark.spec("SX-05")
async def test_what_a_running_call_has_stored_and_shown_holds_no_secret(engine: Engine) -> None:
    gate = Gate()
    shown: list[object] = []

    async def leak(args: Mapping[str, Any], ctx: ToolContext) -> object:
        for piece in ("begin ", KEY[:6], KEY[6:], " and half ", KEY[:7]):
            ctx.out.write(piece)
        await gate()
        ctx.out.write(" more")
        return None

    script = [say(call("leak")), say("done")]
    root = await engine.root(script, tools=[Probe("leak", body=leak)], secrets=known())
    engine.harness.on_preview(lambda preview: shown.append(preview.payload))
    running = engine.begin(root.prompt("go"))
    await engine.storage.until(lambda commit: not is_main(commit))
    assert f"begin {MARK} and half ".encode() in stored(engine)
    assert KEY[:7].encode() not in stored(engine), "the start of a secret waits for its end"
    gate.open()
    assert (await running).text == "done"
    assert KEY.encode() not in stored(engine) + repr(shown).encode()
    (entry,) = [one for one in await root.entries() if one.kind == "tool_result"]
    assert entry.payload["message"]["content"][0]["text"] == (
        f"begin {MARK} and half {KEY[:7]} more"
    )


@pytest.mark.spec("SX-05")
async def test_a_stream_stores_and_shows_no_secret_while_it_runs(engine: Engine) -> None:
    gate = Gate()
    shown: list[object] = []
    reply = say(f"it is {KEY}, really", chunk=4, gates={9: gate})
    root = await engine.root([reply], secrets=known())
    engine.harness.on_preview(lambda preview: shown.append(preview.payload))
    running = engine.begin(root.prompt("go"))
    await engine.storage.until(lambda commit: not is_main(commit))
    assert MARK.encode() in stored(engine)
    gate.open()
    assert (await running).text == f"it is {MARK}, really"
    assert KEY.encode() not in stored(engine) + repr(shown).encode()
    assert MARK in repr(shown)


@pytest.mark.spec("SX-05")
async def test_a_cut_of_the_output_never_leaves_half_a_secret(engine: Engine) -> None:
    async def leak(args: Mapping[str, Any], ctx: ToolContext) -> object:
        ctx.out.write(f"{KEY}12345")
        return None

    output = Output(bytes_max=16)
    tools = [Probe("leak", body=leak, output=output)]
    root = await engine.root([say(call("leak")), say("done")], tools=tools, secrets=known())
    await root.prompt("go")
    (entry,) = [one for one in await root.entries() if one.kind == "tool_result"]
    assert KEY[-8:] not in entry.payload["message"]["content"][0]["text"]
