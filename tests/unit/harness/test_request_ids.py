"""A request key names one acceptance for ever: repeating it answers the first (D02, ID)."""

import asyncio
from typing import Any

import pytest

from perdure.errors import Faulted, Rejected
from perdure.harness.conversation import Conversation
from perdure.line.command import Command
from perdure.providers.script import END, say
from perdure.records.addresses import input_record, request_input
from perdure.records.conversations import ParentLink
from perdure.records.messages import TextPart, UserMessage
from perdure.records.seqs import Seq
from perdure.records.writes import SetValue
from tests.engine import Engine, Gate, is_main

DISK = OSError("power cut")
VERBS = ("accept", "follow_up", "steer", "next_run", "append_message")


async def second(engine: Engine) -> Conversation:
    root = await engine.harness.root()
    made: list[Seq] = []
    link = ParentLink(conv_id=root.id, as_of=(await root.state()).commit_end, inherit_values=True)
    await engine.line.submit(lambda tx: made.append(tx.insert_conversation(parent=link)))
    found = await engine.harness.conversation(made[0])
    assert found is not None
    return found


async def refusal(engine: Engine, work: Any) -> Rejected:
    head = engine.storage.last_seq
    with pytest.raises(Rejected) as caught:
        await work
    assert engine.storage.last_seq == head
    return caught.value


@pytest.mark.spec("ID-01", "ID-09")
async def test_an_acceptance_without_a_key_stores_no_mapping(engine: Engine) -> None:
    root = await engine.root()
    accepted = await root.accept("hello")
    assert isinstance(accepted.input_id, int)
    assert not accepted.duplicate
    plain = (await engine.commits())[-1]
    await root.abort()
    await root.drive()
    keyed_id = (await root.accept("hello", request_id="k")).input_id
    keyed = (await engine.commits())[-1]
    names = [write.namespace for write in plain.writes if isinstance(write, SetValue)]
    assert "perdure.request-input" not in names
    # The captured settings are stored once, with the first generation.
    assert len(keyed.writes) == len(plain.writes)
    assert await engine.harness.get_value(request_input("k"), None) == keyed_id


@pytest.mark.spec("ID-02", "IV-17")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_input_and_mapping_come_together(engine: Engine, when: Any) -> None:
    root = await engine.root()
    engine.storage.fail(is_main, DISK, when=when)
    with pytest.raises(Faulted):
        await root.accept("hello", request_id="k")
    await engine.kill()
    root = await engine.root()
    mapped = await engine.harness.get_value(request_input("k"), None)
    entries = await root.entries()
    assert (mapped is None) == (when == "before") == (not entries)
    again = await root.accept("hello", request_id="k")
    assert again.duplicate == (when == "after")
    entries = await root.entries()
    assert [entry.id for entry in entries] == [again.input_id]
    assert len(await root.tasks()) == 1


@pytest.mark.spec("ID-03", "ID-10", "QU-17")
@pytest.mark.parametrize("verb", VERBS)
async def test_a_repeat_answers_the_first_and_writes_nothing(engine: Engine, verb: str) -> None:
    gate = Gate()
    root = await engine.root([say("first", gates={END: gate}), say("second"), say("third")])
    await root.accept("busy")

    async def repeat() -> Seq:
        again = await getattr(root, verb)("hello", request_id="k")
        assert again.duplicate
        return again.input_id

    first = await getattr(root, verb)("hello", request_id="k")
    assert not first.duplicate
    head = engine.storage.last_seq
    assert await repeat() == first.input_id
    assert engine.storage.last_seq == head
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    head = engine.storage.last_seq
    assert await repeat() == first.input_id
    assert engine.storage.last_seq == head
    gate.open()
    await driving
    for _ in range(2):
        head = engine.storage.last_seq
        assert await repeat() == first.input_id
        assert engine.storage.last_seq == head
        await engine.kill()
        root = await engine.root()


@pytest.mark.spec("ID-03")
async def test_two_at_once_with_one_key_make_one_input(engine: Engine) -> None:
    root = await engine.root()
    both = await asyncio.gather(*(root.accept("hello", request_id="k") for _ in range(5)))
    assert len({one.input_id for one in both}) == 1
    assert [one.duplicate for one in both] == [False, True, True, True, True]


@pytest.mark.spec("ID-04", "IV-14")
async def test_one_mapping_serves_the_whole_session(engine: Engine) -> None:
    root = await engine.root()
    first = await root.accept("hello", request_id="k")
    child = await second(engine)
    error = await refusal(engine, child.accept("hello", request_id="k"))
    assert error.code == "request_conflict"
    assert await engine.harness.get_value(request_input("k"), None) == first.input_id
    for write in (
        lambda tx: tx.set_value(request_input("k"), 7),
        lambda tx: tx.delete_value(request_input("k")),
        lambda tx: tx.set_value(input_record(first.input_id), {}),
    ):
        assert (await refusal(engine, engine.harness.command(write))).code == "invariant"


@pytest.mark.spec("ID-05")
async def test_any_clean_text_is_a_key(engine: Engine) -> None:
    root = await engine.root()
    keys = ["0", " ", "web-request-42", "../..", "é" * 256, '{"a":1}', "\u2028", "x" * 512]
    ids = [(await root.follow_up("hello", request_id=key)).input_id for key in keys]
    assert len(set(ids)) == len(keys)
    for key, input_id in zip(keys, ids, strict=True):
        assert (await root.follow_up("hello", request_id=key)).input_id == input_id
    for key in ("", "x" * 513, "é" * 257, "a\x00b", "\ud800"):
        error = await refusal(engine, root.accept("hello", request_id=key))
        assert error.code == "invariant"


@pytest.mark.spec("ID-06", "ID-10")
async def test_a_key_used_for_something_else_is_refused(engine: Engine) -> None:
    root = await engine.root([say("done")])
    first = await root.accept("hello", request_id="k")
    other = await second(engine)
    rows: list[tuple[str, Any]] = [
        ("content", root.accept("hello!", request_id="k")),
        ("content", root.accept(_messages("hello", "hello"), request_id="k")),
        ("verb", root.follow_up("hello", request_id="k")),
        ("verb", root.steer("hello", request_id="k")),
        ("verb", root.append_message("hello", request_id="k")),
        ("conversation", other.accept("hello", request_id="k")),
        ("conversation", other.steer("other words", request_id="k")),
    ]
    for differs, work in rows:
        error = await refusal(engine, work)
        assert error.code == "request_conflict"
        assert error.details == {"input": first.input_id, "conv": root.id, "differs": differs}
        assert "hello" not in str(error)
    await root.drive()
    await engine.kill()
    root = await engine.root()
    error = await refusal(engine, root.accept("hello!", request_id="k"))
    assert error.details["differs"] == "content"
    same = UserMessage(content=(TextPart(text="hello"),), timestamp=99)
    assert (await root.accept(same, request_id="k")).input_id == first.input_id


@pytest.mark.spec("ID-03", "ID-06")
async def test_the_key_is_looked_up_before_anything_else_is_checked(engine: Engine) -> None:
    await engine.root()
    child = await second(engine)
    accepted = await child.accept("hello", request_id="k")
    await child.abort()
    await child.drive()
    await engine.line.submit(lambda tx: tx.delete_conversation(child.id))
    again = await child.accept("hello", request_id="k")
    assert (again.input_id, again.duplicate) == (accepted.input_id, True)
    assert (await refusal(engine, child.accept("hello"))).code == "deleted"
    assert (await refusal(engine, child.accept("new", request_id="n"))).code == "deleted"


@pytest.mark.spec("ID-07", "ID-09")
async def test_the_mapping_is_an_ordinary_value(engine: Engine) -> None:
    root = await engine.root([say("done")])
    await root.prompt("hello", request_id="k")
    await engine.kill()
    root = await engine.root()
    engine.storage.reads.clear()
    input_id: Any = await engine.harness.get_value(request_input("k"), None)
    assert engine.storage.reads == ["value"]
    assert (await root.result(Seq(input_id))).text == "done"
    assert await engine.harness.get_value(request_input("unused"), "absent") == "absent"

    async def look(tx: Command) -> None:
        assert await tx.get_value(request_input("k"), None) == input_id

    await engine.harness.command(look)


@pytest.mark.spec("QU-01")
async def test_two_accepts_on_an_idle_conversation(engine: Engine) -> None:
    for order in (("A", "B"), ("B", "A")):
        root = await engine.root([say(f"for {order[0]}"), say(f"for {order[1]}")], session=order[0])
        first, later = await asyncio.gather(*(root.accept(text) for text in order))
        assert (await root.result(first.input_id)).state == "open"
        assert (await root.result(later.input_id)).state == "queued"
        assert [item.kind for item in (await root.state()).inbox] == ["followUp"]
        await root.drive()
        assert (await root.result(first.input_id)).text == f"for {order[0]}"
        assert (await root.result(later.input_id)).text == f"for {order[1]}"
        await engine.close()


def _messages(*texts: str) -> list[UserMessage]:
    return [UserMessage(content=(TextPart(text=text),)) for text in texts]
