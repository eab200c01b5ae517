"""Scripts from files and recordings: what was recorded is said again, what is misspelt refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import ProviderError, Rejected
from perdure.hosts.threads import DaemonThreads
from perdure.providers.script import Deferred, Failure
from perdure.providers.script_files import (
    load_script,
    read_script,
    recorded,
    replayed,
    scripted_from_file,
)
from perdure.providers.scripted import ScriptedModels
from perdure.records.codec import encode, to_raw
from perdure.records.entries import Entry, ModelId
from perdure.records.messages import (
    AssistantMessage,
    AssistantPayload,
    MessageError,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPayload,
    text_message,
)
from perdure.records.models import ModelRequest
from perdure.records.seqs import Seq
from perdure.testing.manual_clock import ManualClock

MODEL = ModelId(provider="scripted", model_id="file")
SAID = [
    AssistantMessage(
        content=(
            ThinkingPart(text="let me see"),
            ToolCallPart(call_id="c1", name="list", args={"path": "."}),
        ),
        api="messages",
        model=ModelId(provider="anthropic", model_id="m"),
        stop="toolUse",
        stop_detail="tool_use",
    ),
    AssistantMessage(
        content=(TextPart(text="Two files."),),
        api="messages",
        model=ModelId(provider="anthropic", model_id="m"),
        stop="stop",
    ),
]


async def answers(models: ScriptedModels, count: int) -> list[AssistantMessage]:
    """Play so many requests."""
    found: list[AssistantMessage] = []
    for _ in range(count):
        request = ModelRequest(model=MODEL, messages=(text_message("go"),))
        async with models.stream(request) as stream:
            result = (await stream.outcome()).result
        assert isinstance(result, AssistantMessage)
        found.append(result)
    return found


def entries() -> list[Entry]:
    """Store the recording's messages as a session would."""
    user = to_raw(UserPayload(messages=(text_message("What is here?"),)))
    payloads = [("user", user), *(("assistant", to_raw(AssistantPayload(message=m))) for m in SAID)]
    return [
        Entry(
            id=Seq(at), conv_id=Seq(1), kind=kind, meta_json=to_raw({}), payload_json=payload,
            commit_end=Seq(at),
        )
        for at, (kind, payload) in enumerate(payloads, 2)
    ]  # fmt: skip


def spellings() -> dict[str, bytes]:
    """Spell one recording in every form that is accepted."""
    stored: list[Any] = [json.loads(encode(entry)) for entry in entries()]
    commits = [
        {"c": "0", "f": 1, "l": 9, "t": 0, "w": [{"s": 1, "k": "entry", **e}]} for e in stored
    ]
    return {
        "entries": encode(stored),
        "entry lines": b"\n".join(encode(entry) for entry in stored),
        "payloads": encode([entry["payload"] for entry in stored]),
        "messages": encode(SAID),
        "commits": b"\n".join(encode(commit) for commit in commits) + b"\n",
    }


@pytest.mark.spec("PV-25")
@pytest.mark.parametrize("form", sorted(spellings()))
async def test_a_recording_is_said_again_in_order(form: str) -> None:
    models = read_script(spellings()[form], form)
    first, second = await answers(models, 2)
    assert (first.content, first.stop, first.stop_detail) == (
        SAID[0].content,
        "toolUse",
        "tool_use",
    )
    assert (second.content, second.model) == (SAID[1].content, MODEL)
    with pytest.raises(ProviderError, match="2 replies used"):
        await answers(models, 1)


async def test_entries_are_a_script_too() -> None:
    first, second = await answers(ScriptedModels(recorded(entries())), 2)
    assert (first.calls[0].name, second.text) == ("list", "Two files.")


async def test_a_recorded_failure_fails_again() -> None:
    broken = AssistantMessage(
        content=(TextPart(text="Ha"),),
        api="x",
        model=MODEL,
        stop="error",
        error=MessageError(code="overloaded", message="too much"),
    )
    with pytest.raises(ProviderError, match="too much") as caught:
        await answers(ScriptedModels([replayed(broken)]), 1)
    assert caught.value.code == "overloaded"
    assert isinstance(caught.value.partial, AssistantMessage)
    assert caught.value.partial.text == "Ha"


async def test_a_file_spells_every_part_of_a_reply(tmp_path: Path) -> None:
    spelt = {
        "replies": [
            {
                "thinking": "hm",
                "text": "Wait.",
                "calls": [{"name": "go", "args": {"n": 1}}, {"name": "go", "argsText": "{"}],
                "usage": {"input": 1, "output": 2, "cacheRead": None},
                "delayMs": 5,
                "delaysMs": {"0": 10},
                "when": "go",
            },
            {"error": {"code": "rate_limited", "retryAfterMs": 7, "status": 429}},
            {"text": "never", "deferred": {"polls": 2, "pollAfterMs": 3}, "uses": 0},
        ],
        "chunk": 2,
    }
    place = tmp_path / "script.json"
    place.write_text(json.dumps(spelt))
    models = await scripted_from_file(str(place), threads=DaemonThreads(), clock=ManualClock())
    first, second, third = models.replies
    assert [type(part) for part in first.parts] == [
        ThinkingPart, TextPart, ToolCallPart, ToolCallPart,
    ]  # fmt: skip
    assert (first.delay_ms, first.delays_ms, first.when) == (5, {0: 10}, "go")
    assert second.failure == Failure(code="rate_limited", retry_after_ms=7, status=429, at=0)
    assert third.deferred == Deferred(polls=2, poll_after_ms=3)
    assert models.chunk == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not JSON"),
        (b'{"replies": [{"txt": "x"}]}', "txt"),
        (b'{"replies": [{"text": 7}]}', "replies"),
        (b'{"replies": [{"error": {"code": "sad"}}]}', "sad"),
        (b"[]", "no replies"),
        (b'[{"role": "assistant", "content": 3}]', "item 0"),
    ],
)
def test_what_is_no_script_is_refused_by_name(content: bytes, said: str) -> None:
    with pytest.raises(Rejected, match=said) as caught:
        read_script(content, "my.json")
    assert "my.json" in caught.value.message
    assert "accepted is" in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"absent\.json") as caught:
        load_script(tmp_path / "absent.json")
    assert caught.value.code == "not_found"
