"""The records narrow: what a type checker must accept, and what it must refuse.

The lines run, too; the refusals are the suppressions, which the checker reports as unnecessary
as soon as it accepts the line.
"""

from typing import assert_type

import pytest
from msgspec import UnsetType

from perdure.errors import FailureCode, ProviderError, Rejected, RejectionCode
from perdure.records import ACTIVE_TOOLS, MODEL, entry_label, request_input
from perdure.records.addresses import (
    Address,
    ConversationList,
    ConversationValue,
    SessionList,
    SessionValue,
)
from perdure.records.context_list import ContextList
from perdure.records.entries import ModelId
from perdure.records.inputs import InputResult
from perdure.records.messages import (
    AssistantMessage,
    AssistantPayload,
    MessageError,
    Part,
    UserMessage,
    normalize_input,
    read_payload,
    text_message,
)
from perdure.records.retry import ErrorClass, TryAgain, classify, decide_retry
from perdure.records.seqs import Seq
from perdure.records.settings import RetryPolicy
from perdure.records.strict_json import Repairs
from perdure.records.writes import Write


def read_session_value(token: SessionValue[int]) -> Address:
    return token.address()


def read_conversation_value(token: ConversationValue[int]) -> Address:
    return token.bind(Seq(1))


def test_tokens_of_another_lifetime_kind_or_type_do_not_fit() -> None:
    count, own = SessionValue[int]("my.count"), ConversationValue[int]("my.count")
    assert_type(read_session_value(count), Address)
    assert_type(read_conversation_value(own), Address)
    with pytest.raises(AttributeError):
        read_session_value(own)  # pyright: ignore[reportArgumentType]
    with pytest.raises(AttributeError):
        read_conversation_value(count)  # pyright: ignore[reportArgumentType]
    read_session_value(SessionList[int]("my.count"))  # pyright: ignore[reportArgumentType]
    read_session_value(SessionValue[str]("my.count"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(AttributeError):
        ConversationList[int]("my").address()  # pyright: ignore[reportAttributeAccessIssue]


def test_core_tokens_carry_their_types() -> None:
    assert_type(MODEL, ConversationValue[ModelId])
    assert_type(ACTIVE_TOOLS, ConversationValue[list[str]])
    assert_type(entry_label(Seq(1)), SessionValue[str])
    assert_type(request_input("r"), SessionValue[int])


def test_records_are_frozen_and_keyword_only() -> None:
    message = text_message("a")
    with pytest.raises(AttributeError):
        message.timestamp = 1  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        ModelId("p", "m")  # pyright: ignore[reportCallIssue]


def test_results_narrow() -> None:
    result = InputResult(input_id=Seq(1), conv_id=Seq(1), mode="prompt", state="open")
    assert_type(result.message, AssistantMessage | None)
    assert_type(result.text, str)
    assert_type(result.final, bool)
    messages, repairs = normalize_input("a")
    assert_type(messages, tuple[UserMessage, ...])
    assert_type(repairs, Repairs)
    assert_type(messages[0].content, tuple[Part, ...])
    ids = ContextList([Seq(1)])
    assert_type(ids[0], Seq)
    assert_type(ids[:1], ContextList)


def test_failures_narrow() -> None:
    error = ProviderError("server", "down")
    assert_type(error.code, FailureCode)
    assert_type(classify(error), ErrorClass)
    verdict = decide_retry(error, RetryPolicy(), session_id="s", task_id=Seq(1), attempt=1)
    assert_type(verdict, TryAgain | MessageError)
    assert_type(Rejected("busy", "no").code, RejectionCode)
    Rejected("bsy", "no")  # pyright: ignore[reportArgumentType]


def seq_of(write: Write) -> Seq:
    return write.seq


def payload_of(read: AssistantPayload) -> AssistantMessage:
    assert_type(read.message.response_id, str | UnsetType)
    return read.message


def test_unions_share_what_all_their_members_have() -> None:
    assert seq_of.__annotations__["return"] is Seq
    assert payload_of.__annotations__["return"] is AssistantMessage
    assert read_payload.__annotations__["data"].__name__ == "Raw"
