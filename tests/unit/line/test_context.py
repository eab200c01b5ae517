"""The context list and its projection: what the model reads, and nothing else (seed 6, CX)."""

import inspect
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw, Struct

from perdure.errors import Rejected
from perdure.kinds.content import CORE_CONTENT
from perdure.line.command import Command
from perdure.line.facts import ContentFacts
from perdure.providers.script import END, call, fail, say
from perdure.records.codec import decode
from perdure.records.entries import EntryMeta
from perdure.records.messages import (
    AssistantMessage,
    Message,
    SummaryPayload,
    TextPart,
    ToolResultMessage,
    UserMessage,
    text_message,
)
from perdure.records.seqs import Seq
from perdure.records.writes import AppendContext, PatchTask
from tests.engine import Engine, Gate, Probe
from tests.unit.line.test_validation import (
    META,
    USER,
    answering,
    entry_of,
    refused,
)


def texts(messages: Sequence[Message]) -> list[str]:
    return [
        "".join(part.text for part in one.content if isinstance(part, TextPart)) for one in messages
    ]


class NotePayload(Struct):
    lines: list[str]


class NoteKind(Struct, frozen=True):
    """A host's content kind: one message a line of its payload."""

    selects: bool = True

    @property
    def facts(self) -> ContentFacts:
        return ContentFacts(
            name="my.note", selects=self.selects, meta=EntryMeta, payload=NotePayload
        )

    def project(self, meta: EntryMeta, payload: Raw | None) -> Sequence[Message]:
        assert payload is not None
        return [text_message(line, 1) for line in decode(payload, NotePayload).lines]


@pytest.mark.spec("CX-01")
async def test_the_kind_alone_decides_what_selects_itself(engine: Engine) -> None:
    root = await engine.root()
    selecting = {name for name, kind in CORE_CONTENT.items() if kind.facts.selects}
    assert selecting == {"user", "assistant", "tool_result"}
    made: dict[str, Seq] = {}

    def build(tx: Command) -> None:
        made["user"] = tx.insert_entry(root.id, "user", META, USER)
        made["summary"] = tx.insert_entry(root.id, "summary", META, SummaryPayload(v=1, text="x"))
        made["input"] = tx.insert_entry(root.id, "input", META, USER)
        made["call_result"] = tx.insert_entry(root.id, "call_result", META, answering("x"))

    await engine.line.submit(build)
    assert list((await root.state()).context) == [made["user"]]
    options = set(inspect.signature(Command.insert_entry).parameters)
    assert options == {
        "self", "conv_id", "kind", "meta", "payload", "written_by", "call_index", "through",
        "key", "ref",
    }  # fmt: skip


@pytest.mark.spec("CX-02")
async def test_a_kind_projects_what_it_reads_perhaps_nothing(engine: Engine) -> None:
    root = await engine.root([say("ok"), say("ok")], contents=[NoteKind()])

    def note(*lines: str) -> Any:
        return lambda tx: _end(tx.insert_entry(root.id, "my.note", META, {"lines": list(lines)}))

    await engine.line.submit(note("one", "two"))
    await engine.line.submit(note())
    await root.prompt("hello")
    assert texts(engine.models.requests[0].messages) == ["one", "two", "hello"]
    assert len((await root.state()).context) == 4


@pytest.mark.spec("CX-03")
async def test_a_selecting_insert_appends_itself_in_the_same_command(engine: Engine) -> None:
    root = await engine.root()
    ids: list[Seq] = []

    def build(tx: Command) -> None:
        for _ in range(3):
            ids.append(tx.insert_entry(root.id, "user", META, USER))
            tx.insert_entry(root.id, "input", META, USER)

    await engine.line.submit(build)
    assert list((await root.state()).context) == ids
    appends = [
        write for write in (await engine.commits())[-1].writes if isinstance(write, AppendContext)
    ]
    assert [(one.seq, one.ids) for one in appends] == [(seq + 1, (seq,)) for seq in ids]
    assert not [name for name in dir(Command) if "append_context" in name]


@pytest.mark.spec("CX-05", "CX-07")
async def test_replace_and_reset_raise_the_version_and_append_does_not(engine: Engine) -> None:
    root = await engine.root()
    first = await entry_of(engine, root)
    await entry_of(engine, root)
    assert (await root.state()).prefix_version == 0

    def replace(expect: int) -> Any:
        def build(tx: Command) -> None:
            head = tx.insert_entry(
                root.id, "summary", META, SummaryPayload(v=1, text="x"), through=first
            )
            tx.replace_context(root.id, through=first, head=head, expect_prefix_version=expect)

        return build

    assert await refused(engine, replace(1)) == "version_mismatch"
    await engine.line.submit(replace(0))
    assert (await root.state()).prefix_version == 1
    assert await refused(engine, replace(0)) == "version_mismatch"
    await entry_of(engine, root)
    assert (await root.state()).prefix_version == 1
    await root.reset_context()
    state = await root.state()
    assert (state.prefix_version, list(state.context)) == (2, [])


@pytest.mark.spec("CX-04", "CX-06", "CX-10", "CX-18")
async def test_a_replacement_keeps_the_suffix_behind_the_summary(engine: Engine) -> None:
    root = await engine.root([say("a1"), say("a2"), say("a3")])
    await root.prompt("u1")
    await root.prompt("u2")
    first_user, first_answer, second_user, second_answer = (await root.state()).context
    heads: list[Seq] = []

    def build(tx: Command) -> None:
        heads.append(
            tx.insert_entry(
                root.id, "summary", META, SummaryPayload(v=1, text="before"), through=first_answer
            )
        )
        tx.replace_context(root.id, through=first_answer, head=heads[0], expect_prefix_version=0)

    await engine.line.submit(build)
    assert list((await root.state()).context) == [heads[0], second_user, second_answer]
    transcript = [entry.id for entry in await root.entries()]
    assert transcript == [first_user, first_answer, second_user, second_answer, heads[0]]
    await root.prompt("u3")
    assert texts(engine.models.requests[-1].messages) == ["before", "u2", "a2", "u3"]


@pytest.mark.spec("CX-11", "CX-24")
async def test_a_reset_waits_for_open_requests_and_calls(engine: Engine) -> None:
    stream, tool = Gate(), Gate()
    root = await engine.root(
        [say(call("wait"), gates={END: stream}), fail("overloaded"), say("done")],
        tools=[Probe("wait", gate=tool)],
    )
    accepted = await root.accept("hello")
    # Pending allows edits; so does a wait, when the caller insists.
    await root.reset_context(list((await root.state()).context))
    driving = engine.begin(root.drive())
    await stream.reached.wait()
    with pytest.raises(Rejected) as caught:
        await root.reset_context()
    assert caught.value.code == "busy"
    stream.open()
    await tool.reached.wait()
    for force in (False, True):
        with pytest.raises(Rejected) as caught:
            await root.reset_context(force=force)
        assert caught.value.code == "busy"
    tool.open()
    await engine.clock.until_asleep()
    head, version = engine.storage.last_seq, (await root.state()).prefix_version
    rows: list[tuple[str, dict[str, Any]]] = [
        ("busy", {}),
        ("version_mismatch", {"expect_prefix_version": version + 1}),
        ("version_mismatch", {"expect_prefix_version": version - 1, "force": True}),
    ]
    for code, options in rows:
        with pytest.raises(Rejected) as caught:
            await root.reset_context(**options)
        assert caught.value.code == code
    assert engine.storage.last_seq == head
    question = list((await root.state()).context)[:1]
    await root.reset_context(question, expect_prefix_version=version, force=True)
    engine.clock.advance(60_000)
    await driving
    assert (await root.result(accepted.input_id)).text == "done"
    assert len(engine.models.requests[-1].messages) == 1
    kinds = [entry.kind for entry in await root.entries()]
    assert kinds == ["user", "assistant", "tool_result", "assistant"]


@pytest.mark.spec("CX-13")
async def test_an_empty_or_note_only_reset_creates_no_work(engine: Engine) -> None:
    root = await engine.root([say("one"), say("two")])
    await root.prompt("hello")
    note: list[Seq] = []
    await engine.line.submit(
        lambda tx: note.append(
            tx.insert_entry(root.id, "summary", META, SummaryPayload(v=1, text="a note"))
        )
    )
    for ids in ((), (note[0],)):
        await root.reset_context(ids)
        assert (await root.drive()).outcome == "idle"
        await engine.kill()
        root = await engine.root([say("two")])
        assert (await root.drive()).outcome == "idle"
        assert len(await root.tasks()) == 1
        assert list((await root.state()).context) == list(ids)
    await root.prompt("next")
    assert texts(engine.models.requests[-1].messages) == ["a note", "next"]


@pytest.mark.spec("CX-14")
async def test_results_follow_their_message_in_call_order(engine: Engine) -> None:
    gates = {name: Gate() for name in ("a", "b", "c")}
    tools = [Probe(name, gate=gate) for name, gate in gates.items()]
    root = await engine.root(
        [say("asking", call("a"), call("b"), call("c")), say("done")], tools=tools
    )
    driving = engine.begin(root.prompt("hello"))
    for count, name in enumerate(("c", "a", "b"), 1):
        await gates[name].reached.wait()
        gates[name].open()
        await engine.storage.until(lambda _, wanted=count: _results(engine) >= wanted)
    await driving
    stored = [entry.call_index for entry in await root.entries() if entry.kind == "tool_result"]
    assert stored == [2, 0, 1]
    messages = engine.models.requests[-1].messages
    assert [type(one) for one in messages] == [
        UserMessage, AssistantMessage, *[ToolResultMessage] * 3,
    ]  # fmt: skip
    assert texts(messages) == ["hello", "asking", "a ran", "b ran", "c ran"]


@pytest.mark.spec("CX-25", "IV-06")
async def test_what_did_not_finish_is_not_sent_again(engine: Engine) -> None:
    root = await engine.root(
        [
            fail("auth", "half an answer", call("look")),
            say("asks", call("look")),
            say("after abort"),
        ],
        tools=[Probe("look", gate=Gate())],
    )
    assert (await root.prompt("one")).state == "failed"
    accepted = await root.accept("two")
    driving = engine.begin(root.drive())
    await engine.storage.until(
        lambda commit: any(getattr(write, "status", None) == "running" for write in commit.writes)
    )
    await root.abort()
    await driving
    assert (await root.result(accepted.input_id)).state == "aborted"
    await root.prompt("three")
    messages = engine.models.requests[-1].messages
    assert texts(messages)[:3] == ["one", "two", "asks"]
    assert [type(one).__name__ for one in messages] == [
        "UserMessage", "UserMessage", "AssistantMessage", "ToolResultMessage", "UserMessage",
    ]  # fmt: skip
    result = messages[3]
    assert isinstance(result, ToolResultMessage)
    assert result.is_error
    stops = [entry.meta.stop for entry in await root.entries() if entry.kind == "assistant"]
    assert stops == ["error", "toolUse", "stop"]


@pytest.mark.spec("IV-06")
async def test_a_projection_writes_nothing(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root(
        [
            fail("auth", "half", call("look")),
            say(" ", call("look"), call("look")),
            say("x", gates={0: gate}),
        ],
        tools=[Probe("look")],
    )
    await root.prompt("one")
    await root.accept("two")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    (task,) = [one for one in await root.tasks() if one.status == "streaming"]
    intent = (await engine.commits())[-1]
    assert [getattr(write, "status", None) for write in intent.writes] == ["streaming"]
    assert intent.last_seq == engine.line.last_seq, "nothing between the intent and the request"
    assert [write.task_id for write in intent.writes if isinstance(write, PatchTask)] == [task.id]
    gate.open()
    await driving


@pytest.mark.spec("CX-19", "RS-06")
async def test_the_current_context_is_read_from_memory(engine: Engine) -> None:
    root = await engine.root([say("one"), say("two")])
    await root.prompt("hello")
    engine.storage.reads.clear()
    state = await root.state()
    assert len(state.context) == 2
    for entry_id in state.context:
        assert await root.entry(entry_id) is not None
    assert not [name for name in engine.storage.reads if name != "info"]
    await engine.kill()
    root = await engine.root()
    engine.storage.reads.clear()
    assert len((await root.state()).context) == 2
    assert engine.storage.reads == ["conversations"]


def _results(engine: Engine) -> int:
    state = engine.line.residency.conversation(Seq(1))
    assert state is not None
    found = [engine.line.residency.entry(seq) for seq in state.context]
    return sum(entry is not None and entry.kind == "tool_result" for entry in found)


def _end(_: object) -> None:
    """Turn a call with an answer into a step of a command."""
