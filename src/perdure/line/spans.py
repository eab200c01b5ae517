"""Spans that the engine opens: none at all while nobody listens (TM-01, TM-02).

A span is told ids, names, counts, durations, statuses and usage, never what was said: whoever adds
one takes its facts from ids and from records' metadata, never from a payload, an argument or the
text of an error. Its parent is the span around the code that opens it; the adapter finds that one.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Final, TypeAlias

from perdure.ports import Clock, Span, Telemetry
from perdure.records.seqs import Seq
from perdure.records.tasks import Task
from perdure.records.writes import InsertTask, SettleTask, Write

Told: TypeAlias = Callable[[Sequence[Write]], None]
"""Hears what a command wrote."""


class _Nowhere:
    def set(self, **facts: str | int | float | bool) -> None:
        """Drop the facts."""


def _ignore(_: Sequence[Write]) -> None:
    """Drop what was written."""


NO_SPAN: Final[AbstractContextManager[Span]] = nullcontext(_Nowhere())
"""What stands where no span is opened."""

_UNTOLD: Final[AbstractContextManager[Told]] = nullcontext(_ignore)
_UNSEEN: Final[AbstractContextManager[None]] = nullcontext()


def command_span(
    telemetry: Telemetry, clock: Clock, *, is_main: bool
) -> AbstractContextManager[Told]:
    """Span one command, from its wait for the line until its listeners heard of it (TM-06)."""
    return _command(telemetry, clock, is_main=is_main) if telemetry.is_on else _UNTOLD


@contextmanager
def _command(telemetry: Telemetry, clock: Clock, *, is_main: bool) -> Generator[Told]:
    began = clock.monotonic_ms()
    with telemetry.span("line.command", main=is_main, records=0) as span:

        def told(writes: Sequence[Write]) -> None:
            span.set(records=len(writes), first_seq=writes[0].seq, last_seq=writes[-1].seq)

        try:
            yield told
        finally:
            span.set(duration_ms=clock.monotonic_ms() - began)


def settlement_spans(
    telemetry: Telemetry,
    writes: Sequence[Write],
    after: Mapping[Seq, Task],
    before: Callable[[Seq], Task | None],
) -> AbstractContextManager[None]:
    """Span the settlement of each task that a commit ends, while it is made durable."""
    return _settling(telemetry, writes, after, before) if telemetry.is_on else _UNSEEN


@contextmanager
def _settling(
    telemetry: Telemetry,
    writes: Sequence[Write],
    after: Mapping[Seq, Task],
    before: Callable[[Seq], Task | None],
) -> Generator[None]:
    successors = sum(isinstance(write, InsertTask) for write in writes)
    with ExitStack() as spans:
        for write in writes:
            if isinstance(write, SettleTask):
                task = after[write.task_id]
                earlier = before(task.id)
                spans.enter_context(
                    telemetry.span(
                        "task.settle",
                        kind=task.kind,
                        task=task.id,
                        conv=task.conv_id,
                        status_from="" if earlier is None else earlier.status,
                        status_to=task.status,
                        successors=successors,
                    )
                )
        yield
