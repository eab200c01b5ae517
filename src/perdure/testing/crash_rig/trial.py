"""What the rig and its children say to each other: trials in, reports out, one JSON line each."""

from typing import Final, Literal

from msgspec import Struct

POINTS: Final = (
    "open.before", "open.after",
    "main.before", "main.after", "working.before", "working.after",
    "barrier.unsynced", "barrier.synced",
    "request.before", "request.first_frame", "request.last_frame",
    "effect.before", "effect.after",
    "launch.before", "launch.after", "exit.uncommitted",
    "close.before", "close.storage", "close.after",
)  # fmt: skip
"""Every named point of a first life, in the order of a session's story.

`main` and `working` are commits, before and after their persistence; `barrier.unsynced` is a
barrier commit that is written and not yet synced; `exit.uncommitted` is a command's end, known to
the harness and not yet committed.
"""

RECOVERY_POINTS: Final = ("reconcile.before", "reconcile.after", "stop.before", "stop.after")
"""Points that only a life after a kill reaches, when a command's launch is found again."""

Phase = Literal["effect", "command", "request", "commit"]
"""What may be in flight: a tool's effect, a launched command, a provider request, a commit."""

PHASES: Final[tuple[Phase, ...]] = ("effect", "command", "request", "commit")


class Kill(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where one life ends: at the `nth` time a point is reached, or after `after_s` seconds."""

    point: str = ""
    nth: int = 1
    after_s: float | None = None

    def __str__(self) -> str:
        """Name the kill the way a report does."""
        return f"{self.point}#{self.nth}" if self.after_s is None else f"+{self.after_s:.4f}s"


class Trial(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One session: a folder of its own, how its lives end, and one last life that audits.

    `early_close` closes the harness of killed lives while tools still run; `command_s` is how
    long the story's shell command takes; with `queue_first` the second message is said before the
    first one is driven, so that no acceptance is committed while tools run.
    """

    folder: str
    kills: tuple[Kill, ...] = ()
    durability: Literal["power", "process"] = "power"
    early_close: bool = False
    command_s: float = 0.05
    queue_first: bool = False


class Life(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one life ended: killed or not, what was in flight then, which points it had reached."""

    kill: str = ""
    killed: bool = False
    in_flight: tuple[Phase, ...] = ()
    points: tuple[str, ...] = ()
    seconds: float = 0.0


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a trial; no faults means that every promise held."""

    trial: Trial
    lives: tuple[Life, ...]
    faults: tuple[str, ...] = ()
    commits: int = 0
    effects: int = 0
    outcomes: tuple[str, ...] = ()
