"""The write vocabulary and the records it makes: stored names, and nothing else."""

import importlib
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import Raw

import perdure.records
from perdure.records.codec import decode, decode_json, encode, to_raw
from perdure.records.inputs import InputRecord
from perdure.records.names import stored_as
from perdure.records.seqs import Seq
from perdure.records.settings import RetryPolicy
from perdure.records.tasks import Task
from perdure.records.writes import (
    AppendContext,
    AppendList,
    Commit,
    DeleteConversation,
    DeleteList,
    DeleteValue,
    InsertConversation,
    InsertEntry,
    InsertTask,
    PatchConversation,
    PatchTask,
    ReplaceContext,
    ResetContext,
    RetireScope,
    SettleTask,
    SetValue,
    Write,
    scope_of,
)

ONE, TWO, THREE = Seq(1), Seq(2), Seq(3)
NULL = Raw(b"null")
OBJECT = Raw(b"{}")

WRITES: list[tuple[Write, dict[str, Any]]] = [
    (InsertConversation(seq=ONE), {"k": "ins_conv", "s": 1}),
    (PatchConversation(seq=ONE, conv_id=TWO, label=None, steering_mode="all",
                       follow_up_mode="one-at-a-time", inbox=()),
     {"k": "set_conv", "s": 1, "id": 2, "label": None, "steeringMode": "all",
      "followUpMode": "one-at-a-time", "inbox": []}),
    (DeleteConversation(seq=ONE, conv_id=TWO), {"k": "del_conv", "s": 1, "id": 2}),
    (InsertEntry(seq=ONE, conv_id=TWO, kind="user", meta_json=OBJECT, payload_json=NULL),
     {"k": "ins_entry", "s": 1, "conv": 2, "kind": "user", "meta": {}, "payload": None}),
    (InsertTask(seq=ONE, conv_id=TWO, kind="tool", at_entry=THREE, spawned_by=THREE, after=(THREE,),
                status="planned", state_json=OBJECT),
     {"k": "ins_task", "s": 1, "conv": 2, "kind": "tool", "at": 3, "for": 3, "after": [3],
      "status": "planned", "state": {}}),
    (PatchTask(seq=ONE, task_id=TWO, status="running", state_json=OBJECT, unset=("a",), after=(),
               owns=THREE, abort_requested=True),
     {"k": "set", "s": 1, "id": 2, "status": "running", "state": {}, "unset": ["a"], "after": [],
      "owns": 3, "abort": True}),
    (SettleTask(seq=ONE, task_id=TWO, status="done"),
     {"k": "settle", "s": 1, "id": 2, "status": "done"}),
    (AppendContext(seq=ONE, conv_id=TWO, ids=(THREE,)),
     {"k": "ctx_append", "s": 1, "conv": 2, "ids": [3]}),
    (ReplaceContext(seq=ONE, conv_id=TWO, through=THREE, head=ONE, expect_prefix_version=0),
     {"k": "ctx_replace", "s": 1, "conv": 2, "through": 3, "with": 1, "expectPrefixVersion": 0}),
    (ResetContext(seq=ONE, conv_id=TWO, ids=()), {"k": "ctx_reset", "s": 1, "conv": 2, "ids": []}),
    (SetValue(seq=ONE, conv_id=TWO, namespace="n", key="", value_json=NULL),
     {"k": "value_set", "s": 1, "conv": 2, "namespace": "n", "key": "", "value": None}),
    (DeleteValue(seq=ONE, working_scope="w", namespace="n", key="k"),
     {"k": "value_delete", "s": 1, "workingScope": "w", "namespace": "n", "key": "k"}),
    (AppendList(seq=ONE, namespace="n", key="k", value_json=NULL, tag="t"),
     {"k": "list_append", "s": 1, "namespace": "n", "key": "k", "value": None, "tag": "t"}),
    (DeleteList(seq=ONE, namespace="n", key="k"),
     {"k": "list_delete", "s": 1, "namespace": "n", "key": "k"}),
    (RetireScope(seq=ONE, working_scope="w"), {"k": "scope_retire", "s": 1, "workingScope": "w"}),
]  # fmt: skip


@pytest.mark.spec("ST-31")
@pytest.mark.parametrize(("write", "shape"), WRITES)
def test_every_write_has_its_stored_shape(write: Write, shape: dict[str, Any]) -> None:
    assert decode_json(encode(write)) == shape
    assert decode(encode(write), Write) == write  # type: ignore[arg-type]


@pytest.mark.spec("ST-31")
def test_the_vocabulary_is_exactly_fifteen_kinds_of_write() -> None:
    tags = [kind.__struct_config__.tag for kind in get_args(Write)]
    assert tags == [
        "ins_conv", "set_conv", "del_conv", "ins_entry", "ins_task", "set", "settle",
        "ctx_append", "ctx_replace", "ctx_reset", "value_set", "value_delete", "list_append",
        "list_delete", "scope_retire",
    ]  # fmt: skip
    assert [shape["k"] for _, shape in WRITES] == tags


@pytest.mark.spec("ST-31")
@pytest.mark.parametrize("kind", ["", "ins_scope", "SET", "patch", None, 1])
def test_any_other_kind_of_write_is_refused(kind: Any) -> None:
    line = to_raw({"f": 1, "l": 1, "t": 5, "w": [{"k": kind, "s": 1, "conv": 2, "ids": []}]})
    with pytest.raises(msgspec.ValidationError):
        decode(line, Commit)


@pytest.mark.spec("ST-32")
def test_set_conv_changes_inbox_label_and_queue_modes_only() -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(PatchConversation)}
    assert fields == {"s", "id", "inbox", "label", "steeringMode", "followUpMode"}


def test_a_commit_has_the_stored_shape() -> None:
    commit = Commit(
        first_seq=ONE, last_seq=TWO, time_ms=1764400000000,
        writes=(InsertConversation(seq=ONE), AppendContext(seq=TWO, conv_id=ONE, ids=())),
    )  # fmt: skip
    assert decode_json(encode(commit)) == {
        "f": 1, "l": 2, "t": 1764400000000,
        "w": [{"k": "ins_conv", "s": 1}, {"k": "ctx_append", "s": 2, "conv": 1, "ids": []}],
    }  # fmt: skip
    assert decode(encode(commit), Commit) == commit


def test_a_commit_belongs_to_one_lifetime() -> None:
    def commit(*made: Write) -> Commit:
        return Commit(first_seq=ONE, last_seq=TWO, writes=made)

    a = SetValue(seq=ONE, working_scope="a", namespace="n", key="", value_json=NULL)
    b = DeleteList(seq=TWO, working_scope="b", namespace="n", key="")
    main = SetValue(seq=TWO, namespace="n", key="", value_json=NULL)
    assert scope_of(commit(a)) == "a"
    assert scope_of(commit(main, RetireScope(seq=ONE, working_scope="a"))) is None
    for mixed in ((a, b), (a, main), (a, RetireScope(seq=TWO, working_scope="a")), ()):
        with pytest.raises(ValueError, match="lifetimes"):
            scope_of(commit(*mixed))


@pytest.mark.spec("TK-01")
def test_a_task_round_trips_exactly_its_ten_fields() -> None:
    full = Task(
        id=ONE, conv_id=TWO, kind="tool", at_entry=THREE, spawned_by=ONE, after=(TWO, THREE),
        status="running", state_json=Raw(b'{"v":1}'), owns=TWO, abort_requested=True,
    )  # fmt: skip
    assert decode_json(encode(full)) == {
        "id": 1, "conv": 2, "kind": "tool", "at": 3, "for": 1, "after": [2, 3],
        "status": "running", "state": {"v": 1}, "owns": 2, "abort": True,
    }  # fmt: skip
    assert decode(encode(full), Task) == full
    assert full.state == {"v": 1}
    bare = Task(id=ONE, conv_id=TWO, kind="tool", status="planned", state_json=OBJECT)
    assert set(decode_json(encode(bare))) == {"id", "conv", "kind", "status", "state"}
    assert decode(encode(bare), Task) == bare
    with pytest.raises(msgspec.ValidationError):
        decode(b'{"id":1,"conv":2,"kind":"t","status":"s","state":{},"at":null}', Task)


@pytest.mark.parametrize(
    ("record", "shape"),
    [
        (
            InputRecord(conv_id=ONE, mode="prompt", state="open", digest="d"),
            {"v": 1, "conv": 1, "mode": "prompt", "state": "open", "digest": "d"},
        ),
        (
            InputRecord(
                conv_id=ONE, mode="followUp", state="withdrawn", digest="d", request_id="r",
                entry=TWO, task=THREE, answer=TWO, partial=TWO, withdrawn_by="abort",
            ),
            {"v": 1, "conv": 1, "mode": "followUp", "state": "withdrawn", "digest": "d",
             "requestId": "r", "entry": 2, "task": 3, "answer": 2, "partial": 2, "by": "abort"},
        ),
        (
            RetryPolicy(),
            {"maxAttempts": 4, "baseDelayMs": 2000, "maxDelayMs": 60000},
        ),
    ],
)  # fmt: skip
def test_stored_values_spell_out_their_version_and_nothing_absent(record: Any, shape: Any) -> None:
    assert decode_json(encode(record)) == shape


def test_no_record_leaves_its_version_out() -> None:
    records = [
        value
        for path in Path(perdure.records.__file__).parent.glob("*.py")
        for value in vars(importlib.import_module(f"perdure.records.{path.stem}")).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and "v" in value.__struct_fields__
    ]
    assert len(set(records)) >= 8
    for record in records:
        version = next(field for field in msgspec.structs.fields(record) if field.name == "v")
        assert not (record.__struct_config__.omit_defaults and not version.required), record


def test_a_stored_name_is_never_derived_by_accident() -> None:
    with pytest.raises(KeyError):
        stored_as()("never_named")
    assert stored_as(never_named="nn")("never_named") == "nn"
    assert stored_as()("kind") == "kind"
