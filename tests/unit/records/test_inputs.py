"""The public reading of an input's record."""

from perdure.records.entries import ModelId
from perdure.records.inputs import FINAL_STATES, InputResult
from perdure.records.messages import AssistantMessage, TextPart
from perdure.records.seqs import Seq


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
