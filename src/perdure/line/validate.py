"""Validation: every rule a write must meet, checked in order before anything is stored (VD).

One small function a kind of write; each reads the draft, refuses with a code of D37, and leaves
the new object in the draft. A rejection discards the whole command and uses no seq (VD-13).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NoReturn, cast

import msgspec
from msgspec import UNSET

from perdure.errors import Rejected, RejectionCode
from perdure.line.draft import Draft
from perdure.records.codec import decoder, to_raw
from perdure.records.context_list import ContextList, has_legal_shape
from perdure.records.conversations import ConversationState, InboxItem, ParentLink
from perdure.records.entries import Entry, new_entry
from perdure.records.messages import AssistantPayload, read_payload
from perdure.records.names import stored
from perdure.records.seqs import Seq
from perdure.records.tasks import Role, Task, new_task
from perdure.records.writes import (
    AppendContext,
    AppendList,
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
)

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _CallFacts(msgspec.Struct, frozen=True, rename=stored):
    call_index: int | msgspec.UnsetType = UNSET


_CALL: Final = msgspec.json.Decoder(_CallFacts)


def validate(draft: Draft, writes: Sequence[Write]) -> None:
    """Walk the writes of a main command; raises Rejected for the first that breaks a rule."""
    for write in writes:
        _RULES[type(write)](draft, write)
    _check_placements(draft)
    _check_answers(draft)
    _check_wakes(draft)


def _refuse(message: str, code: RejectionCode = "invariant") -> NoReturn:
    raise Rejected(code, message)


# Conversations.


def _insert_conversation(draft: Draft, write: InsertConversation) -> None:
    if write.parent is not UNSET:
        _check_parent(draft, write.parent, is_owned=write.owner is not UNSET)
    if write.owner is not UNSET:
        owner = draft.task(write.owner)
        if owner is None or not draft.is_live(owner):
            _refuse(f"the owner {write.owner} is no live task", "unknown_target")
    draft.conversations[write.seq] = ConversationState(
        id=write.seq,
        commit_end=draft.commit_end,
        parent=write.parent,
        owner=write.owner,
        context=ContextList(write.context),
    )
    for entry_id in write.context:
        if not draft.sees_entry(write.seq, entry_id):
            _refuse(f"entry {entry_id} is not in the inherited prefix", "unknown_target")
    _check_list(draft, write.context)


def _check_parent(draft: Draft, link: ParentLink, *, is_owned: bool) -> None:
    """Refuse a link to what was not there, and an entry that does not make its boundary (VD-09)."""
    if not draft.had_begun(link.conv_id, link.as_of):
        _refuse(
            f"there is no conversation {link.conv_id} to inherit from at commit {link.as_of}",
            "unknown_target",
        )
    if is_owned and link.inherit_values:
        _refuse("a conversation that a task owns inherits no values (FK-01)")
    entry = draft.entry(link.at_entry) if link.at_entry is not UNSET else None
    if link.at_entry is not UNSET and (
        entry is None or entry.conv_id != link.conv_id or entry.commit_end != link.as_of
    ):
        _refuse(
            f"at names entry {link.at_entry}, which is none of conversation {link.conv_id} in the "
            f"commit that ends at {link.as_of}",
            "unknown_target",
        )


def _patch_conversation(draft: Draft, write: PatchConversation) -> None:
    state = draft.conversation(write.conv_id)
    changes: dict[str, Any] = {}
    if write.inbox is not UNSET:
        _check_inbox(draft, state, write.inbox)
        changes["inbox"] = write.inbox
    if write.label is not UNSET:
        changes["label"] = UNSET if write.label is None else write.label
    if write.steering_mode is not UNSET:
        changes["steering_mode"] = write.steering_mode
    if write.follow_up_mode is not UNSET:
        changes["follow_up_mode"] = write.follow_up_mode
    _touch(draft, state, **changes)


def _check_inbox(draft: Draft, state: ConversationState, inbox: Sequence[InboxItem]) -> None:
    """Admit only what waits already, and `input` entries of this command (D03)."""
    if any(low.id >= high.id for low, high in pairwise(inbox)):
        _refuse("an inbox is ascending by input id")
    for item in inbox:
        if item in state.inbox:
            continue
        entry = draft.entries.get(item.entry)
        if (
            entry is None
            or entry.kind != "input"
            or entry.conv_id != state.id
            or item.id != item.entry
        ):
            _refuse(f"inbox item {item.id} names no input admitted by this command")


def _delete_conversation(draft: Draft, write: DeleteConversation) -> None:
    state = draft.conversation(write.conv_id)
    if state.parent is UNSET and state.owner is UNSET:
        _refuse("the root conversation is not deleted; delete its session")
    live = [task.id for task in draft.live_tasks(write.conv_id)]
    if live:
        _refuse(f"conversation {write.conv_id} has live tasks {live}", "busy")
    _touch(draft, state, deleted=True)


def _touch(draft: Draft, state: ConversationState, **changes: Any) -> None:
    """Note that this commit touches a conversation, its tasks included (ST-20)."""
    if not changes and state.commit_end == draft.commit_end:
        return
    draft.conversations[state.id] = msgspec.structs.replace(
        state, commit_end=draft.commit_end, **changes
    )


# Entries.


def _insert_entry(draft: Draft, write: InsertEntry) -> None:
    state = draft.conversation(write.conv_id)
    facts = draft.kinds.content(write.kind)
    if facts is None:
        _refuse(f"no content kind is named {write.kind!r}")
    if write.key is not UNSET and not facts.keyed:
        _refuse(f"content kind {write.kind!r} takes no key (CX-23)")
    if write.through is not UNSET and not draft.sees_entry(write.conv_id, write.through):
        _refuse(f"through names entry {write.through}, which is not visible here", "unknown_target")
    entry = new_entry(write, draft.commit_end)
    if write.ref is not UNSET:
        entry = _placed_entry(draft, entry, write.ref)
    if facts.answers:
        _check_answer(draft, entry)
    elif facts.selects and draft.unresolved_calls(write.conv_id):
        _refuse(f"a {write.kind} entry cannot stand between a call and its result (VD-14)", "busy")
    draft.entries[write.seq] = entry
    _touch(draft, state)


def _placed_entry(draft: Draft, entry: Entry, ref: Seq) -> Entry:
    admitted = draft.entry(ref)
    if admitted is None or admitted.conv_id != entry.conv_id or admitted.kind != "input":
        _refuse(f"ref names {ref}, which is no input entry of conversation {entry.conv_id}")
    if entry.payload_json is not UNSET:
        _refuse("a placed entry carries no payload of its own (D03)")
    if ref in draft.placed:
        _refuse(f"input {ref} is placed twice")
    draft.placed[ref] = entry.conv_id
    return msgspec.structs.replace(entry, payload_json=admitted.payload_json)


def _check_placements(draft: Draft) -> None:
    for input_id, conv_id in draft.placed.items():
        before = draft.committed_conversation(conv_id)
        waited = before is not None and any(item.id == input_id for item in before.inbox)
        waits = any(item.id == input_id for item in draft.conversation(conv_id).inbox)
        if not waited or waits:
            _refuse(f"input {input_id} is placed without leaving the inbox in the same command")


def _check_answer(draft: Draft, entry: Entry) -> None:
    """Admit a result only as the one result of a call that has none (VD-15)."""
    answers = entry.meta.answers
    if answers is UNSET or entry.call_index is UNSET:
        _refuse(f"a {entry.kind} entry names the call it answers")
    key = (answers, entry.call_index)
    if key in draft.answered:
        _refuse(f"call {entry.call_index} of entry {answers} is answered twice")
    writer = draft.task(entry.written_by) if entry.written_by is not UNSET else None
    if writer is not None and draft.facts(writer.kind).answers_call:
        if not draft.is_live(writer) or writer.id in draft.answering:
            _refuse(f"task {writer.id} has answered its call")
        own = _CALL.decode(writer.state_json).call_index
        if writer.at_entry != answers or own not in (UNSET, entry.call_index):
            _refuse(f"task {writer.id} answers its own call only")
        draft.answering.add(writer.id)
    elif answers not in draft.entries:
        _refuse(f"call {entry.call_index} of entry {answers} belongs to a tool task")
    draft.answered.add(key)


def _check_answers(draft: Draft) -> None:
    for task_id in draft.answering:
        task = draft.task(task_id)
        if task is not None and draft.is_live(task):
            _refuse(f"task {task_id} wrote its result without settling")


def _check_wakes(draft: Draft) -> None:
    """Refuse a settlement that leaves the task it wakes asleep (TK-23)."""
    for task in draft.tasks.values():
        wakes = draft.facts(task.kind).wakes
        if not wakes or task.spawned_by is UNSET or draft.is_live(task):
            continue
        waiter = draft.task(task.spawned_by)
        if waiter is not None and waiter.kind in wakes:
            role = draft.kinds.role(waiter.kind, waiter.status)
            if role is Role.WAITING and waiter.abort_requested is UNSET:
                _refuse(f"task {task.id} settled and left task {waiter.id} waiting for it")


# Tasks.


def _insert_task(draft: Draft, write: InsertTask) -> None:
    state = draft.conversation(write.conv_id)
    facts = draft.facts(write.kind)
    if write.status not in facts.initials:
        _refuse(f"a {write.kind} task does not start as {write.status!r}")
    if write.at_entry is not UNSET and not draft.sees_entry(write.conv_id, write.at_entry):
        _refuse(f"at names entry {write.at_entry}, which is not visible here", "unknown_target")
    if write.spawned_by is not UNSET and draft.task(write.spawned_by) is None:
        _refuse(f"for names task {write.spawned_by}, which does not exist", "unknown_target")
    if facts.exchange_root:
        _check_admission(draft, state)
    _check_state(write.kind, write.state_json, facts.state)
    task = new_task(write)
    _check_dependencies(draft, task)
    draft.tasks[write.seq] = task
    _touch(draft, state)


def _check_admission(draft: Draft, state: ConversationState) -> None:
    """Admit no second generation, and none beside outstanding cancellation targets (CN-08)."""
    for task in draft.live_tasks(state.id):
        if task.abort_requested is not UNSET:
            _refuse(f"conversation {state.id} is being cancelled", "busy")
        if draft.facts(task.kind).exchange_root:
            _refuse(f"conversation {state.id} already has generation {task.id}", "busy")


def _check_state(kind: str, state_json: msgspec.Raw, schema: type[Any]) -> None:
    try:
        decoder(schema).decode(state_json)
    except msgspec.ValidationError as error:
        _refuse(f"the state of a {kind} task does not fit its schema: {error}")


def _check_dependencies(draft: Draft, task: Task) -> None:
    for target in task.after:
        other = draft.task(target)
        if other is None:
            _refuse(f"after names task {target}, which does not exist", "unknown_target")
        if other.conv_id != task.conv_id and (
            draft.tree_root(other.conv_id) != draft.tree_root(task.conv_id)
        ):
            _refuse(f"task {target} belongs to an independent tree (VD-06)")


def _check_cycle(draft: Draft, task: Task) -> None:
    pending, seen = list(task.after), set[Seq]()
    while pending:
        target = pending.pop()
        if target == task.id:
            _refuse(f"task {task.id} would wait for itself (VD-05)")
        if target in seen:
            continue
        seen.add(target)
        other = draft.task(target)
        if other is not None and draft.is_live(other):
            pending.extend(other.after)


def _live_target(draft: Draft, task_id: Seq) -> Task:
    task = draft.task(task_id)
    if task is None:
        _refuse(f"there is no task {task_id}", "not_found")
    if not draft.is_live(task):
        _refuse(f"task {task_id} has settled as {task.status!r} (TK-19)")
    return task


def _moved(draft: Draft, task: Task, status: str, *, terminal: bool) -> None:
    facts = draft.facts(task.kind)
    role = facts.roles.get(status)
    if role is None or (role is Role.TERMINAL) is not terminal:
        verb = "settles" if terminal else "moves"
        _refuse(f"a {task.kind} task never {verb} to {status!r}")
    if status != task.status and status not in facts.transitions.get(task.status, ()):
        _refuse(f"a {task.kind} task does not go from {task.status!r} to {status!r}")


def _merged(draft: Draft, task: Task, write: PatchTask | SettleTask) -> msgspec.Raw:
    """Answer the state with a patch's fields set and its `unset` ones removed (TK-13, TK-14)."""
    if write.state_json is UNSET and not write.unset:
        return task.state_json
    facts = draft.facts(task.kind)
    patch = {} if write.state_json is UNSET else _FIELDS.decode(write.state_json)
    unknown = {*patch, *write.unset}.difference(facts.state.__struct_encode_fields__)
    if unknown:
        _refuse(f"a {task.kind} task has no state fields {sorted(unknown)!r}")
    fields = _FIELDS.decode(task.state_json)
    fields.update(patch)
    for name in write.unset:
        fields.pop(name, None)
    merged = to_raw(fields)
    _check_state(task.kind, merged, facts.state)
    return merged


def _patch_task(draft: Draft, write: PatchTask) -> None:
    task = _live_target(draft, write.task_id)
    changes: dict[str, Any] = {"state_json": _merged(draft, task, write)}
    if write.status is not UNSET:
        _moved(draft, task, write.status, terminal=False)
        changes["status"] = write.status
    if write.after is not UNSET:
        changes["after"] = write.after
    if write.owns is not UNSET:
        child = draft.any_conversation(write.owns)
        if child is None or child.owner != task.id:
            _refuse(f"task {task.id} owns a conversation that does not name it (VD-11)")
        changes["owns"] = write.owns
    if write.abort_requested is not UNSET:
        changes["abort_requested"] = True
    patched = msgspec.structs.replace(task, **changes)
    if write.after is not UNSET:
        _check_dependencies(draft, patched)
        _check_cycle(draft, patched)
    draft.tasks[task.id] = patched
    _touch(draft, draft.conversation(task.conv_id))


def _settle_task(draft: Draft, write: SettleTask) -> None:
    task = _live_target(draft, write.task_id)
    _moved(draft, task, write.status, terminal=True)
    draft.tasks[task.id] = msgspec.structs.replace(
        task, status=write.status, state_json=_merged(draft, task, write)
    )
    _touch(draft, draft.conversation(task.conv_id))


# Context.


def _append_context(draft: Draft, write: AppendContext) -> None:
    state = draft.conversation(write.conv_id)
    last = state.context[-1] if len(state.context) > 1 else None
    for entry_id in write.ids:
        entry = draft.entries.get(entry_id)
        facts = draft.kinds.content(entry.kind) if entry is not None else None
        if entry is None or entry.conv_id != write.conv_id or facts is None or not facts.selects:
            _refuse(f"entry {entry_id} does not select itself in this command (CX-03)")
        if last is not None and entry_id <= last:
            _refuse(f"entry {entry_id} would break the list's order (CX-06)")
        last = entry_id
    _touch(draft, state, context=state.context.append(write.ids))


def _check_editable(draft: Draft, conv_id: Seq) -> None:
    if draft.request_in_flight(conv_id) or draft.unresolved_calls(conv_id):
        _refuse("the context is not editable while a request or a call is open (CX-11)", "busy")


def _replace_context(draft: Draft, write: ReplaceContext) -> None:
    state = draft.conversation(write.conv_id)
    if state.prefix_version != write.expect_prefix_version:
        _refuse(
            f"the context is at prefix version {state.prefix_version}, "
            f"not {write.expect_prefix_version}",
            "version_mismatch",
        )
    _check_editable(draft, write.conv_id)
    head = draft.entries.get(write.head)
    if head is None or head.conv_id != write.conv_id or head.through != write.through:
        _refuse(f"the head {write.head} is no summary of this command through {write.through}")
    if write.through not in state.context:
        _refuse(f"entry {write.through} is not on the context list", "unknown_target")
    replaced = state.context.replace(write.through, write.head)
    _check_list(draft, replaced)
    _touch(draft, state, context=replaced, prefix_version=state.prefix_version + 1)


def _reset_context(draft: Draft, write: ResetContext) -> None:
    state = draft.conversation(write.conv_id)
    _check_editable(draft, write.conv_id)
    for entry_id in write.ids:
        if not draft.sees_entry(write.conv_id, entry_id):
            _refuse(f"entry {entry_id} is not visible here", "unknown_target")
    _check_list(draft, write.ids)
    _touch(draft, state, context=ContextList(write.ids), prefix_version=state.prefix_version + 1)


def _check_list(draft: Draft, ids: Sequence[Seq]) -> None:
    """Refuse a list that is not an optional head and whole exchanges ascending (CX-06, CX-08)."""
    if not has_legal_shape(ids):
        _refuse("a context list is an optional head and then entries ascending by id (CX-06)")
    listed = set(ids)
    answered: set[tuple[Seq, int]] = set()
    asking: list[Entry] = []
    for position, entry_id in enumerate(ids):
        entry = draft.entry(entry_id)
        facts = draft.kinds.content(entry.kind) if entry is not None else None
        if entry is None or facts is None:
            _refuse(f"entry {entry_id} is of no registered kind")
        if position and not facts.selects:
            _refuse(f"a {entry.kind} entry stands only first on a list")
        answers = entry.meta.answers if facts.answers else UNSET
        if answers is not UNSET and answers not in listed:
            _refuse(f"the list holds result {entry_id} without the call it answers (CX-08)")
        if answers is not UNSET and entry.call_index is not UNSET:
            answered.add((answers, entry.call_index))
        if facts.asks:
            asking.append(entry)
    for entry in asking:
        if any((entry.id, index) not in answered for index in range(calls_of(entry))):
            _refuse(f"the list holds entry {entry.id} without all results of its calls (VD-02)")


def calls_of(entry: Entry) -> int:
    """Count the calls of an assistant entry."""
    if entry.payload_json is UNSET:
        return 0
    return len(read_payload(entry.payload_json, AssistantPayload).message.calls)


# Values, lists, scopes.


def _value_write(draft: Draft, write: SetValue | DeleteValue | AppendList) -> None:
    if write.conv_id is not UNSET:
        _touch(draft, draft.conversation(write.conv_id))


def _no_rule(draft: Draft, write: DeleteList | RetireScope) -> None:
    """Admit what its type already makes legal."""


_RULES: Final[Mapping[type[Write], Callable[[Draft, Any], None]]] = MappingProxyType(
    cast(
        "dict[type[Write], Callable[[Draft, Any], None]]",
        {
            InsertConversation: _insert_conversation,
            PatchConversation: _patch_conversation,
            DeleteConversation: _delete_conversation,
            InsertEntry: _insert_entry,
            InsertTask: _insert_task,
            PatchTask: _patch_task,
            SettleTask: _settle_task,
            AppendContext: _append_context,
            ReplaceContext: _replace_context,
            ResetContext: _reset_context,
            SetValue: _value_write,
            DeleteValue: _value_write,
            AppendList: _value_write,
            DeleteList: _no_rule,
            RetireScope: _no_rule,
        },
    )
)
