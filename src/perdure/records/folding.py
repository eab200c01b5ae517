"""What a write does to a task or a context list: pure functions, the same wherever it is read.

Storage folds writes into the state that reads answer, and whoever watches a session folds them
into what it shows; both call these.
"""

from msgspec import UNSET, structs

from perdure.records.codec import EMPTY_OBJECT, merge_object
from perdure.records.context_list import ContextList
from perdure.records.tasks import Task
from perdure.records.writes import PatchTask, ReplaceContext, ResetContext, SettleTask


def patch_task(task: Task, write: PatchTask | SettleTask) -> Task:
    """Answer the task after a patch or its settlement; state merges field by field (TK-14)."""
    state = task.state_json
    if write.state_json is not UNSET:
        state = merge_object(state, write.state_json, write.unset)
    elif write.unset:
        state = merge_object(state, EMPTY_OBJECT, write.unset)
    if type(write) is SettleTask:
        return structs.replace(task, status=write.status, state_json=state)
    assert type(write) is PatchTask
    return structs.replace(
        task,
        status=task.status if write.status is UNSET else write.status,
        state_json=state,
        after=task.after if write.after is UNSET else write.after,
        owns=task.owns if write.owns is UNSET else write.owns,
        abort_requested=(
            task.abort_requested if write.abort_requested is UNSET else write.abort_requested
        ),
    )


def edited(context: ContextList, write: ReplaceContext | ResetContext) -> ContextList:
    """Answer the list after a replace or a reset."""
    if isinstance(write, ResetContext):
        return ContextList(write.ids)
    return context.replace(write.through, write.head)
