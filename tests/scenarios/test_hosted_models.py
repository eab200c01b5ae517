"""A whole session on each hosted wire: attempts, tools, reopening, failures, what is counted."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import perdure
from perdure.opening import OpenSession
from perdure.records.entries import EntryMeta
from perdure.records.settings import RetryPolicy
from perdure.testing.wire_replies import (
    WireCall,
    WireError,
    WireReply,
    WireText,
    WireThinking,
)
from perdure.testing.wire_server import WireServer
from tests.unit.providers.wires import MODEL_IDS, WIRES, ProviderConfig, WireName

AT_ONCE = RetryPolicy(max_attempts=4, base_delay_ms=1, max_delay_ms=10)
SIGNATURE = "U2lnbmVkLCB0byBiZSBnaXZlbiBiYWNrIHVuY2hhbmdlZC4="


@perdure.tool(replay="safe")
async def weather(city: str) -> str:
    """Current weather of a city."""
    return f"20 degrees in {city}"


def session(folder: Path, wire: WireName, server: WireServer, **options: Any) -> OpenSession:
    url = server.root_url if wire == "anthropic" else server.base_url
    config = ProviderConfig(base_url=url, key=lambda: "k", thinking=True)
    return perdure.open(
        f"sqlite:{folder / 'wires.db'}",
        session="wires",
        model=f"{wire}:{MODEL_IDS[wire]}",
        tools=[weather],
        providers={wire: config},
        retry=AT_ONCE,
        thinking="low",
        stream_options={"max_tokens": 8_000},
        system_prompt="Be brief.",
        **options,
    )


def code_of(result: perdure.InputResult) -> str | None:
    return None if result.error is None else result.error.code


def calls(*cities: str) -> WireReply:
    asked = [
        WireCall(
            id=f"c{number}", name="weather", pieces=(f'{{"city":"{city[:3]}', f'{city[3:]}"}}')
        )
        for number, city in enumerate(cities)
    ]
    thought = WireThinking(pieces=("let me ", "look"), signature=SIGNATURE)
    return WireReply(parts=(thought, WireText(pieces=("I ", "look.")), *asked))


@pytest.mark.spec("PV-18", "PV-19", "BB-32", "BB-33")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_session_goes_on_in_the_next_process(wire: WireName, tmp_path: Path) -> None:
    replies = (
        calls("Paris", "Rome"), WireReply(), calls("Oslo"), WireReply(), WireReply(),
    )  # fmt: skip
    async with WireServer(*replies) as server:
        for text in ("Grüße, 😀", "and Oslo?", "thanks"):
            async with session(tmp_path, wire, server) as harness:
                root = await harness.root()
                result = await root.prompt(text)
                assert (result.state, result.text) == ("answered", "Hello")
        assert server.faults == []
        bodies = [one.body for one in server.posts]
        raws = [one.raw for one in server.posts]
    assert len(bodies) == len(replies)
    field = "input" if wire == "openai" else "messages"
    for earlier, later in itertools.pairwise(bodies):
        before, after = list(earlier[field]), list(later[field])
        assert json.dumps(after[: len(before)]) == json.dumps(before)
    signed = {"openai": 2, "anthropic": 2}.get(wire, 0)
    assert raws[-1].count(SIGNATURE.encode()) == signed
    assert b"20 degrees in Rome" in raws[-1]


@pytest.mark.spec("PV-05", "BB-35")
@pytest.mark.parametrize("wire", WIRES)
async def test_attempts_are_what_the_policy_says(wire: WireName, tmp_path: Path) -> None:
    bad_days: tuple[WireReply | WireError, ...] = (
        WireError(status=429, type="rate_limit_error", code="rate_limit_exceeded"),
        WireError(status=500, type="api_error"),
        WireReply(parts=(WireText(pieces=("Half",)),), end="cut"),
        WireReply(parts=(WireText(pieces=("Half",)),), end="stop"),
    )
    async with WireServer(*bad_days) as server:
        async with session(tmp_path, wire, server) as harness:
            root = await harness.root()
            result = await root.prompt("Hi")
            totals = await harness.usage_totals()
        assert len(server.requests) == AT_ONCE.max_attempts
    assert (result.state, code_of(result)) == ("failed", "stream_ended")
    known = {"anthropic": 2}.get(wire, 0)
    assert totals.unknown_attempts == len(bad_days) - known


@pytest.mark.spec("PV-12", "BB-41")
@pytest.mark.parametrize("wire", ["openai", "openai-chat", "openai-compatible"])
async def test_an_answer_without_a_report_is_an_unknown_attempt(
    wire: WireName, tmp_path: Path
) -> None:
    async with (
        WireServer(WireReply(usage=None)) as server,
        session(tmp_path, wire, server) as harness,
    ):
        root = await harness.root()
        assert (await root.prompt("Hi")).state == "answered"
        totals = await harness.usage_totals()
    assert (totals.reports, totals.unknown_attempts) == (0, 1)
    assert totals.costs == {}


@pytest.mark.spec("PV-22")
@pytest.mark.parametrize("wire", ["openai", "openai-chat", "anthropic"])
async def test_a_missing_key_is_said_once_and_the_session_lives(
    wire: WireName, tmp_path: Path
) -> None:
    keys: list[str] = []
    async with WireServer(WireReply()) as server:
        url = server.root_url if wire == "anthropic" else server.base_url
        config = ProviderConfig(base_url=url, key=lambda: keys[0] if keys else None)
        opened = perdure.open(
            f"sqlite:{tmp_path / 'keys.db'}",
            session="keys",
            model=f"{wire}:{MODEL_IDS[wire]}",
            providers={wire: config},
            retry=AT_ONCE,
        )
        async with opened as harness:
            root = await harness.root()
            result = await root.prompt("Hi")
            assert (result.state, code_of(result)) == ("failed", "auth")
            assert server.requests == []
            keys.append("k")
            assert (await root.prompt("Hi")).state == "answered"


@pytest.mark.spec("PV-09", "BB-31")
@pytest.mark.parametrize("wire", WIRES)
async def test_bad_arguments_get_an_answer_and_the_session_lives(
    wire: WireName, tmp_path: Path
) -> None:
    good = WireCall(id="good", name="weather", pieces=('{"city":"Rome"}',))
    bad = [
        WireCall(id=f"bad{number}", name="weather", pieces=(raw,))
        for number, raw in enumerate(('{"city":NaN}', '{"city":"a",}', "[1]", '{"city":"cut'))
    ]
    async with WireServer(WireReply(parts=(*bad, good)), WireReply()) as server:
        async with session(tmp_path, wire, server) as harness:
            root = await harness.root()
            assert (await root.prompt("Hi")).text == "Hello"
        assert server.faults == []
        raw = server.posts[1].raw
    assert b"20 degrees in Rome" in raw
    assert raw.count(b"20 degrees") == 1
    assert b"INVALID_JSON" not in raw


@pytest.mark.spec("PV-08")
@pytest.mark.filterwarnings("ignore:The provider sent")
@pytest.mark.parametrize("wire", WIRES)
async def test_half_characters_never_reach_the_store(wire: WireName, tmp_path: Path) -> None:
    reply = WireReply(parts=(WireText(pieces=("a\ud83d", "\ude00b", "\ud83d", "c")),))
    async with WireServer(reply, WireReply()) as server:
        async with session(tmp_path, wire, server) as harness:
            root = await harness.root()
            assert (await root.prompt("Hi")).text == "a😀b\ufffdc"
            metas: list[Mapping[str, Any] | EntryMeta] = [
                entry.meta for entry in await root.entries(limit=10)
            ]
            assert (await root.prompt("Hi")).state == "answered"
        assert server.faults == []
    repaired = [meta.repaired for meta in metas if isinstance(meta, EntryMeta)]
    assert [one.surrogates for one in repaired if one is not UNSET] == [1]
