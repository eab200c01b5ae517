"""How an approval is worded: for a question, for a list, and for the command that decides it."""

import shlex
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from perdure.cli.visible import one_line
from perdure.records.approvals import ApprovalView, Decision

HELP: Final = """\
  y  let this call run, with exactly the arguments shown
  n  refuse it; the model is told that it was denied
  d  refuse it and say why; the model reads that
  ?  show this
Nothing is decided by an empty line, by the end of input, or by Ctrl-C."""

KEYS: Final = "run it? y yes, n no, d no with a reason, ? help:"


class Waiting(Struct, frozen=True, kw_only=True):
    """One approval that waits, as a document lists it (AQ-08); `age_ms` is how long it has."""

    session: str
    id: int
    conversation: int
    path: Sequence[int]
    tool: str | None
    arguments: str | None
    prompt: str
    age_ms: int
    status: str
    command: str


def waiting(view: ApprovalView, *, now_ms: int, words: Sequence[str], session: str) -> Waiting:
    """Answer an approval with its age and the command that decides it."""
    return Waiting(
        session=session,
        id=view.id,
        conversation=view.conv,
        path=view.path,
        tool=view.tool,
        arguments=view.args_text,
        prompt=view.prompt,
        age_ms=max(0, now_ms - view.asked_ms),
        status=view.status,
        command=deciding(view, words=words, session=session),
    )


def deciding(view: ApprovalView, *, words: Sequence[str], session: str) -> str:
    """Answer the one command that lets a call run, or that raises a budget; `words` are flags."""
    verb = ["approve", str(view.id)] if view.budget is None else ["budget", str(view.id)]
    return shlex.join(["perdure", *verb, *words, "--session", session])


def question(view: ApprovalView, *, now_ms: int) -> str:
    """Word one question: who asks, where, since when, and the arguments in full (AQ-05)."""
    where = " > ".join(str(conv) for conv in view.path)
    age = age_words(max(0, now_ms - view.asked_ms))
    head = f"[approval {view.id}] {name_of(view)} wants to run, in conversation {where}"
    lines = [f"{head}, waiting for {age}"]
    if view.args_text is not None:
        lines.append(f"  {one_line(view.args_text)}")
    if view.prompt:
        lines.append(f"  {one_line(view.prompt)}")
    return "\n".join(lines)


def name_of(view: ApprovalView) -> str:
    """Name what asks: a tool, or whatever made the approval."""
    if view.tool is not None:
        return one_line(view.tool)
    return "what it belongs to" if view.budget is None else "a budget"


def decided_words(status: str, decision: Decision | None) -> str:
    """Say what became of an approval and by whom."""
    if decision is None:
        return status
    return f"{status} by {one_line(decision.by)}"


def age_words(age_ms: int) -> str:
    """Say how long something waits, in the largest unit that says something."""
    seconds = age_ms // 1_000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
