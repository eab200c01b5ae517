"""Request keys and digests: the same request is recognised, another one is not taken for it."""

import pytest

from perdure.errors import Rejected
from perdure.records.codec import digest
from perdure.records.entries import ModelId
from perdure.records.inputs import (
    FINAL_STATES,
    REQUEST_KEY_BYTES_MAX,
    InputResult,
    check_request_key,
    input_digest,
)
from perdure.records.messages import AssistantMessage, TextPart, text_message
from perdure.records.seqs import Seq


def test_a_digest_covers_conversation_verb_and_content_and_not_time() -> None:
    base = input_digest(Seq(1), "accept", [text_message("a", 1), text_message("b", 2)])
    assert base == digest(
        {
            "v": 1, "conv": 1, "verb": "accept",
            "content": [
                {"role": "user", "content": [{"type": "text", "text": text}]} for text in "ab"
            ],
        }
    )  # fmt: skip
    assert base == input_digest(Seq(1), "accept", [text_message("a"), text_message("b", 9)])
    assert base != input_digest(Seq(2), "accept", [text_message("a"), text_message("b")])
    assert base != input_digest(Seq(1), "steer", [text_message("a"), text_message("b")])
    assert base != input_digest(Seq(1), "accept", [text_message("b"), text_message("a")])
    assert base != input_digest(Seq(1), "accept", [text_message("a")])


@pytest.mark.parametrize("key", ["a", "web-42", "é" * 256, "a" * REQUEST_KEY_BYTES_MAX, " "])
def test_a_request_key_is_1_to_512_bytes_of_text(key: str) -> None:
    check_request_key(key)


@pytest.mark.parametrize("key", ["", "a\x00", "\ud800", "é" * 256 + "a", "a" * 513])
def test_any_other_request_key_is_refused(key: str) -> None:
    with pytest.raises(Rejected, match="512 bytes") as refusal:
        check_request_key(key)
    assert refusal.value.code == "invariant"
    assert len(refusal.value.message) < 700


def test_a_result_says_whether_it_can_change_and_what_was_answered() -> None:
    message = AssistantMessage(
        content=(TextPart(text="a"), TextPart(text="b")), api="x", stop="stop",
        model=ModelId(provider="p", model_id="m"),
    )  # fmt: skip
    base = InputResult(input_id=Seq(1), conv_id=Seq(1), mode="prompt", state="open")
    done = InputResult(
        input_id=Seq(1), conv_id=Seq(1), mode="prompt", state="answered", message=message
    )
    assert (base.final, base.text) == (False, "")
    assert (done.final, done.text) == (True, "ab")
    assert {"queued", "open"}.isdisjoint(FINAL_STATES)
