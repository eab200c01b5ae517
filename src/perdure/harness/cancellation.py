"""Abort and shutdown: mark what must end and drain its queues, in one barrier commit (seed 3.7).

It commits intent only; a drive performs the cancellation (CN-19). The target set lives in the
marks: it is not computed again when an early target settles (CN-05).
"""

from msgspec import UNSET, Struct

from perdure.drive.foreground import marked, required, tree_of
from perdure.errors import Rejected
from perdure.harness.core import Core
from perdure.kinds.inputs import move_inputs
from perdure.line.command import Command
from perdure.records.addresses import input_record
from perdure.records.codec import decode
from perdure.records.conversations import InboxItem
from perdure.records.inputs import InputRecord
from perdure.records.messages import UserMessage, UserPayload, read_payload
from perdure.records.seqs import Seq


class Drained(Struct, frozen=True, kw_only=True):
    """One queued input an abort withdrew, with its content (X21)."""

    input_id: Seq
    conv_id: Seq
    mode: str
    messages: tuple[UserMessage, ...]


class AbortReport(Struct, frozen=True, kw_only=True):
    """What one abort did: the tasks it marked, and the inputs it withdrew."""

    marked: tuple[Seq, ...] = ()
    drained: tuple[Drained, ...] = ()
    joined: bool = False


async def abort(core: Core, conv_id: Seq, *, only_if: Seq | None = None) -> AbortReport:
    """Mark and drain; a second abort while targets are outstanding joins the first (CN-03).

    Raises:
        Rejected: `unknown_target` or `deleted`; `version_mismatch`, when the input `only_if` is
            neither queued nor open in this conversation (D27).
    """
    reports: list[AbortReport] = []

    async def build(tx: Command) -> None:
        await tx.conversation(conv_id)
        if only_if is not None:
            await _check_waiting(tx, conv_id, only_if)
        held = core.line.residency
        tree = tree_of(conv_id, held)
        if any(marked(held.live_tasks(member)) for member in tree):
            reports.append(AbortReport(joined=True))
            return
        targets = required(conv_id, core.line.kinds, held)
        for task in targets:
            tx.mark_abort(task.id)
        drained: list[Drained] = []
        for member in dict.fromkeys([conv_id, *(task.conv_id for task in targets)]):
            drained.extend(await _drain(tx, member))
        reports.append(
            AbortReport(marked=tuple(task.id for task in targets), drained=tuple(drained))
        )

    await core.submit(build, barrier=True)
    return reports[0]


async def shutdown(core: Core, conv_id: Seq) -> AbortReport:
    """Mark every live task of the ownership subtree, background included, and drain (CN-21).

    Raises:
        Rejected: `unknown_target` or `deleted`.
    """
    reports: list[AbortReport] = []

    async def build(tx: Command) -> None:
        await tx.conversation(conv_id)
        held = core.line.residency
        tree = tree_of(conv_id, held)
        live = [task for member in tree for task in held.live_tasks(member)]
        targets = [task.id for task in live if task.abort_requested is UNSET]
        for task_id in targets:
            tx.mark_abort(task_id)
        drained = [item for member in tree for item in await _drain(tx, member)]
        reports.append(AbortReport(marked=tuple(targets), drained=tuple(drained)))

    await core.submit(build, barrier=True)
    return reports[0]


async def _check_waiting(tx: Command, conv_id: Seq, input_id: Seq) -> None:
    raw = await tx.get_raw(input_record(input_id))
    record = None if raw is None else decode(raw, InputRecord)
    if record is None or record.conv_id != conv_id or record.state not in ("queued", "open"):
        state = "unknown here" if record is None else record.state
        raise Rejected(
            "version_mismatch", f"input {input_id} is neither queued nor open: it is {state}"
        )


async def _drain(tx: Command, conv_id: Seq) -> list[Drained]:
    """Withdraw queued steer and follow-ups; writes and nextRun stay (CN-02)."""
    state = await tx.conversation(conv_id)
    gone = [item for item in state.inbox if item.kind in ("steer", "followUp")]
    if not gone:
        return []
    drained = [await _hydrated(tx, item) for item in gone]
    kept = [item for item in state.inbox if item not in gone]
    tx.patch_conversation(conv_id, inbox=kept)
    await move_inputs(tx, [item.id for item in gone], "withdrawn", withdrawn_by="abort")
    return drained


async def _hydrated(tx: Command, item: InboxItem) -> Drained:
    entry = await tx.entry(item.entry)
    assert entry.payload_json is not UNSET
    mode = entry.meta.mode
    return Drained(
        input_id=item.id,
        conv_id=entry.conv_id,
        mode="followUp" if mode is UNSET else mode,
        messages=read_payload(entry.payload_json, UserPayload).messages,
    )
