"""Structs, schema and FORMAT.md say the same of payloads, and nothing else is stored (FM-03)."""

import json
from typing import Any

import jsonschema
import pytest
from msgspec import UNSET, Raw

from perdure.errors import Rejected
from perdure.kinds.content import CORE_CONTENT
from perdure.records.codec import decode_json, to_raw
from perdure.records.messages import (
    PAYLOADS,
    AssistantMessage,
    AssistantPayload,
    Cut,
    Extra,
    JobExit,
    JobLog,
    JobResultPayload,
    SummaryPayload,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultMessage,
    ToolResultPayload,
    UserMessage,
    UserPayload,
    check_payload,
)
from perdure.records.models import parse_model
from tests.house.payloads import SCHEMA, fields, schema, structs, table, written

X = Extra(provider_name="p", api_name="a", adapter_version=1, opaque_data=Raw(b"[1]"))
TEXT = TextPart(text="hi", x=X)
RESULT = ToolResultPayload(
    message=ToolResultMessage(
        call_id="c",
        tool_name="t",
        content=(TEXT,),
        details=Raw(b"{}"),
        is_error=False,
        cut=Cut(bytes=9, kept="head"),
    )
)
USER = UserPayload(messages=(UserMessage(content=(TEXT,), timestamp=5),))
EXAMPLES: dict[str, Any] = {
    "user": USER,
    "input": USER,
    "assistant": AssistantPayload(
        message=AssistantMessage(
            content=(
                ThinkingPart(text="hm", redacted=True),
                ToolCallPart(call_id="c", name="t", args={"a": 1}),
                ToolCallPart(call_id="d", name="t", args_text="{"),
            ),
            api="x",
            model=parse_model("a:b"),
            stop="toolUse",
            timestamp=5,
        )
    ),
    "tool_result": RESULT,
    "call_result": RESULT,
    "job_result": JobResultPayload(
        exit=JobExit(code=0), content=(TEXT,), log=JobLog(bytes=7, dir="s/1-a")
    ),
    "summary": SummaryPayload(text="short"),
}


@pytest.mark.spec("FM-03")
def test_schema_and_page_are_those_of_the_structs() -> None:
    assert written() == table(), "run: python -m tests.house.payloads"
    assert SCHEMA.read_text(encoding="utf-8") == schema(), "run: python -m tests.house.payloads"
    described = json.loads(schema())["$defs"]
    assert set(described) == {struct.__name__ for struct in structs()}
    for struct in structs():
        properties = described[struct.__name__]["properties"]
        assert set(properties) == {name for name, _ in fields(struct)}


@pytest.mark.spec("FM-03")
def test_every_kind_of_entry_that_perdure_writes_has_its_payload() -> None:
    assert list(PAYLOADS) == [
        "user", "input", "assistant", "tool_result", "call_result", "job_result", "summary",
    ]  # fmt: skip
    for name, kind in CORE_CONTENT.items():
        assert kind.facts.payload is PAYLOADS[name]


def nested(value: Any) -> list[dict[str, Any]]:
    """List the objects of a payload that version 1 describes."""
    if isinstance(value, list):
        return [found for item in value for found in nested(item)]
    if not isinstance(value, dict):
        return []
    opaque = {"args", "details", "checkpoint", "d"}
    return [
        value,
        *(one for key, item in value.items() if key not in opaque for one in nested(item)),
    ]


@pytest.mark.spec("FM-03")
@pytest.mark.parametrize("kind", PAYLOADS)
def test_a_field_more_or_less_is_refused_by_check_and_schema_alike(kind: str) -> None:
    document = json.loads(schema())
    validator = jsonschema.Draft202012Validator(
        {"$defs": document["$defs"], **document["properties"][kind]}
    )
    right = to_raw(EXAMPLES[kind])
    check_payload(right, PAYLOADS[kind])
    validator.validate(decode_json(right))
    for at in range(len(nested(decode_json(right)))):
        for change in ("more", *nested(decode_json(right))[at]):
            wrong = decode_json(right)
            target = nested(wrong)[at]
            if change == "more":
                target["extra"] = 1
            else:
                del target[change]
            if accepts(validator, wrong):
                # An optional field may be missing; of two that exclude each other, one may not.
                assert change in OPTIONAL
                continue
            with pytest.raises(Rejected):
                check_payload(to_raw(wrong), PAYLOADS[kind])


OPTIONAL = {name for struct in structs() for name, always in fields(struct) if not always}


def accepts(validator: Any, payload: Any) -> bool:
    return not list(validator.iter_errors(payload))


@pytest.mark.spec("FM-03")
@pytest.mark.parametrize(
    "told", [JobExit(), JobExit(code=1, signal="KILL"), JobExit(error="no such file", code=2)]
)
def test_an_exit_is_exactly_one_of_three(told: JobExit) -> None:
    payload = JobResultPayload(exit=told, content=(), log=JobLog(bytes=0, dir="d"))
    with pytest.raises(Rejected, match="one of code, signal and error"):
        check_payload(to_raw(payload), JobResultPayload)
    assert told.code is not UNSET or told.signal is UNSET
