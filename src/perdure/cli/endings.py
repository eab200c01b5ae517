"""How a command ends: outcome word, exit code and the document of `--json` (CM-01, CM-03)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from perdure.errors import (
    Closed,
    Faulted,
    FormatUnsupported,
    ProviderError,
    Refused,
    Rejected,
    StorageBusy,
    StorageDamaged,
    Unreachable,
)

Outcome: TypeAlias = Literal[
    "answered",
    "done",
    "fault",
    "usage",
    "rejected",
    "failed",
    "suspended",
    "limit",
    "aborted",
    "busy",
    "storage",
    "hangup",
    "interrupt",
    "pipe",
    "terminate",
]

CODES: Final[Mapping[Outcome, int]] = MappingProxyType(
    {
        "answered": 0,
        "done": 0,
        "fault": 1,
        "usage": 2,
        "rejected": 3,
        "failed": 4,
        "suspended": 5,
        "limit": 6,
        "aborted": 7,
        "busy": 8,
        "storage": 9,
        "hangup": 129,
        "interrupt": 130,
        "pipe": 141,
        "terminate": 143,
    }
)
"""The exit code of each outcome, the same with and without `--json`."""

MEANINGS: Final[Mapping[Outcome, str]] = MappingProxyType(
    {
        "answered": "the input was answered",
        "done": "the command did what it was asked to; an empty list counts",
        "fault": "a defect of perdure; the traceback is in the report file that is named",
        "usage": "flags, arguments, configuration, or an extra that is not installed",
        "rejected": "a rule said no and nothing was changed; error.code is the rule's",
        "failed": "the work or a check failed after its retries; error.code says how",
        "suspended": "the work waits; waiting_for says for what",
        "limit": "a budget was reached",
        "aborted": "the input was aborted or withdrawn",
        "busy": "another live process owns the session",
        "storage": "a storage fault or damage; reopening goes on from the last commit",
        "hangup": "hang-up (SIGHUP), after a clean close",
        "interrupt": "Ctrl-C (SIGINT), after a clean close",
        "pipe": "standard output was closed or full, after a clean close",
        "terminate": "SIGTERM, after a clean close",
    }
)

CONTINUABLE: Final[frozenset[Outcome]] = frozenset(
    {
        "failed", "suspended", "limit", "busy", "storage",
        "hangup", "interrupt", "pipe", "terminate",
    }
)  # fmt: skip
"""Outcomes after which the line that continues is the last one on standard error (CM-10)."""


class Problem(Struct, frozen=True, kw_only=True):
    """What went wrong: a code for programs, a sentence, and what to do about it."""

    code: str
    message: str
    hint: str | None = None


class Spent(Struct, frozen=True, kw_only=True):
    """Tokens and money; None where a report is missing or does not say (never zero for unknown)."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None
    cost: Mapping[str, str] | None = None
    reports: int = 0
    unknown_attempts: int = 0


class Waiting(Struct, frozen=True, kw_only=True):
    """One thing that suspended work waits for; `until` is wall milliseconds of a timer."""

    kind: str
    task: int
    conversation: int
    until: int | None = None


class Ending(Struct, frozen=True, kw_only=True):
    """What a command answers; `main` prints it and ends with its code.

    `text` is what standard output carries when the document is not asked for, None when it was
    written already; `resume` is the line that continues the session.
    """

    outcome: Outcome = "done"
    session: str | None = None
    conversation: int | None = None
    input_id: int | None = None
    answer: str | None = None
    waiting_for: Sequence[Waiting] | None = None
    usage: Spent | None = None
    data: Any = None
    error: Problem | None = None
    text: str | None = None
    resume: str | None = None

    @property
    def code(self) -> int:
        """Answer the exit code."""
        return CODES[self.outcome]


class Envelope(Struct, frozen=True, kw_only=True):
    """The one document of `--json`; a key that does not apply is null."""

    perdure: Literal[1] = 1
    command: str
    outcome: Outcome
    exit_code: int
    session: str | None
    conversation: int | None
    input_id: int | None
    answer: str | None
    waiting_for: Sequence[Waiting] | None
    usage: Spent | None
    data: Any
    error: Problem | None


def envelope(command: str, ending: Ending) -> Envelope:
    """Make the document of an ending."""
    return Envelope(
        command=command,
        outcome=ending.outcome,
        exit_code=ending.code,
        session=ending.session,
        conversation=ending.conversation,
        input_id=ending.input_id,
        answer=ending.answer,
        waiting_for=ending.waiting_for,
        usage=ending.usage,
        data=ending.data,
        error=ending.error,
    )


class UsageProblem(Exception):
    """Say that flags, arguments or configuration cannot be used; ends with exit code 2."""

    def __init__(self, message: str, hint: str | None = None, *, code: str = "usage") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


def ending_of(error: BaseException) -> Ending | None:
    """Answer how a command ends that raised; None for a defect."""
    match error:
        case UsageProblem():
            problem = Problem(code=error.code, message=error.message, hint=error.hint)
            return Ending(outcome="usage", error=problem)
        case Rejected():
            hint = error.details.get("hint")
            problem = Problem(
                code=error.code,
                message=error.message,
                hint=hint if isinstance(hint, str) else None,
            )
            return Ending(outcome="rejected", error=problem)
        case StorageBusy():
            problem = Problem(
                code="busy",
                message=str(error),
                hint="inspect, context and watch show it all the same; drive it when its owner "
                "has ended",
            )
            return Ending(outcome="busy", error=problem, data=dict(error.holder) or None)
        case Faulted() if error.code == "defect":
            return None
        case Faulted():
            return Ending(outcome="storage", error=Problem(code=error.code, message=error.message))
        case StorageDamaged() | FormatUnsupported():
            code = "damaged" if isinstance(error, StorageDamaged) else "format"
            return Ending(outcome="storage", error=Problem(code=code, message=str(error)))
        case ProviderError():
            return Ending(outcome="failed", error=Problem(code=error.code, message=error.message))
        case Closed() | Unreachable():
            code = "closed" if isinstance(error, Closed) else "unreachable"
            return Ending(outcome="storage", error=Problem(code=code, message=str(error)))
        case Refused():
            return Ending(outcome="rejected", error=Problem(code=error.code, message=error.message))
        case _:
            return None
