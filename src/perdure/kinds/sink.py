"""The sink: where a running tool puts its output, and what its result is made of (seed 16).

Text is kept from the tail or the head up to the tool's cap, with the true total; everything passes
the repairing door (VD-16). While the tool runs, text and checkpoints are stored in its working
scope, so an interrupted call can still show how far it came; what is stored there stays bounded
(RS-10). After settlement every call is refused (TL-31).
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from perdure.drive.context import TaskContext
from perdure.errors import Closed
from perdure.kinds.pump import Pump
from perdure.kinds.secrets import Secrets
from perdure.line.buffer import CommittedReads
from perdure.line.command import WorkingCommand
from perdure.ports import OutputPolicy
from perdure.records.addresses import MEMO, OUTPUT, PROGRESS, task_scope
from perdure.records.codec import decode_json, to_raw
from perdure.records.images import checked_image
from perdure.records.messages import Cut, ImagePart, Part, TextPart, Usage
from perdure.records.scratch import ToolScratch, with_checkpoint, with_output
from perdure.records.seqs import Seq
from perdure.records.sessions import ListPage
from perdure.records.strict_json import (
    NO_REPAIRS,
    JsonObject,
    JsonValue,
    Repairs,
    repair,
    repair_text,
)

STORED_OUTPUT_CAPS: Final = 4
"""Stored output is rewritten when it exceeds this many caps (D30)."""

OUTPUT_PAGE: Final = 1_000


class Window:
    """Keep the head or the tail of a text, by UTF-8 bytes, and count all of it (TL-20)."""

    def __init__(self, policy: OutputPolicy) -> None:
        """Start empty."""
        self._keeps_tail = policy.retain == "tail"
        self._cap = policy.bytes_max
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self.total = 0

    def add(self, text: str) -> None:
        """Add text."""
        chunk = text.encode()
        self.total += len(chunk)
        if self._keeps_tail:
            self._chunks.append(chunk[-self._cap :])
            self._held += len(self._chunks[-1])
            while self._held - len(self._chunks[0]) >= self._cap:
                self._held -= len(self._chunks.popleft())
        elif self._held < self._cap:
            self._chunks.append(chunk[: self._cap - self._held])
            self._held += len(self._chunks[-1])

    @property
    def was_cut(self) -> bool:
        """Say whether some of the text is not kept."""
        return self.total > self._cap

    def text(self) -> str:
        """Answer what is kept, on whole characters."""
        held = b"".join(self._chunks)
        if not self.was_cut:
            return held.decode()
        return (held[-self._cap :] if self._keeps_tail else held[: self._cap]).decode(
            errors="ignore"
        )

    def cut(self) -> Cut | None:
        """Describe the cut, None when everything is kept."""
        if not self.was_cut:
            return None
        return Cut(bytes=self.total, kept="tail" if self._keeps_tail else "head")

    def shown(self) -> str:
        """Answer what is kept with the mark a capped result ends with (TL-20)."""
        text = self.text()
        return f"{text}\n[truncated: {self.total} bytes total]" if self.was_cut else text


class TaskMemos:
    """Memos of one execution, in its working scope (TL-25)."""

    def __init__(self, ctx: TaskContext) -> None:
        """Bind to the task."""
        self._ctx = ctx

    async def get(self, key: str) -> JsonValue:
        """Answer a memo, None when there is none."""
        raw = await self._ctx.line.value(self._ctx.scope.value(MEMO, key))
        return None if raw is None else decode_json(raw)

    async def set(self, key: str, value: JsonValue) -> None:
        """Store a memo, durably; raises Rejected `invariant` for what is not JSON."""

        def build(tx: WorkingCommand) -> None:
            tx.set_value(self._ctx.scope.value(MEMO, key), value)

        await self._ctx.commit_working(build)


class TaskSink:
    """What one execution says."""

    def __init__(
        self,
        ctx: TaskContext,
        policy: OutputPolicy,
        *,
        attempt: int,
        secrets: Secrets | None = None,
    ) -> None:
        """Start empty; output is stored under the attempt's key, without `secrets`."""
        self._secrets = Secrets() if secrets is None else secrets
        self._stream = self._secrets.stream()
        self._window = Window(policy)
        self.pump = Pump(self.flush)
        self.repairs: Repairs = NO_REPAIRS
        self.details_json: Raw | None = None
        self.images: list[Part] = []
        self.is_error = False
        self.reported_usage: Usage | None = None
        self.handoff_text: str | None = None
        self.added_tools: tuple[str, ...] = ()
        self.terminates = False
        self._ctx = ctx
        self._memo = TaskMemos(ctx)
        self._policy = policy
        self._address = ctx.scope.list(OUTPUT, str(attempt))
        self._unstored: list[str] = []
        self._stored_bytes = 0
        self._ended = False

    @property
    def window(self) -> Window:
        """Answer what the result shows; asked for when the call is over."""
        self._take(self._stream.rest())
        return self._window

    @property
    def replaced(self) -> Repairs:
        """Count everything a door replaced."""
        return self.repairs + Repairs(secrets=self._stream.count)

    @property
    def memo(self) -> TaskMemos:
        """Answer the execution's memos."""
        return self._memo

    def write(self, text: str) -> None:
        """Add output text."""
        self._check()
        clean, repairs = repair_text(str(text))
        self.repairs += repairs
        self._take(self._stream.feed(clean))

    def details(self, value: JsonValue) -> None:
        """Set the result's details; replaced on repeat."""
        self._check()
        clean, repairs = repair(value)
        self.repairs += repairs
        self.details_json = to_raw(clean)

    def image(self, image: ImagePart) -> None:
        """Add an image block, or a note of why a model may not see it (PV-20)."""
        self._check()
        self.images.append(checked_image(image, "a tool's output"))

    def error(self, *, is_error: bool = True) -> None:
        """Mark the result as an error."""
        self._check()
        self.is_error = is_error

    def usage(self, usage: Usage) -> None:
        """Report usage; stored with the outcome, never before it (TL-26)."""
        self._check()
        self.reported_usage = usage

    def handoff(self, text: str) -> None:
        """Ask for a context reset to this text after the exchange."""
        self._check()
        clean, repairs = repair_text(str(text))
        self.handoff_text, hidden = self._secrets.text(clean)
        self.repairs += repairs + Repairs(secrets=hidden)

    def add_tools(self, names: Sequence[str]) -> None:
        """Add tools to the active ones at settlement."""
        self._check()
        self.added_tools = (*self.added_tools, *names)

    def terminate(self, *, value: bool = True) -> None:
        """Ask that the run stops after this exchange."""
        self._check()
        self.terminates = value

    async def progress(self, partial: JsonObject) -> None:
        """Store a checkpoint, then show it (TL-24)."""
        self._check()
        clean, repairs = repair(partial)
        clean, hidden = self._secrets.value(clean)
        self.repairs += repairs + Repairs(secrets=hidden)

        def build(tx: WorkingCommand) -> None:
            tx.set_value(self._ctx.scope.value(PROGRESS), clean)

        await self._ctx.commit_working(build, shows=self._ctx.shown("progress", clean))

    # For the tool kind.

    def end(self) -> None:
        """Refuse every later call."""
        self._ended = True

    def parts(self) -> tuple[Part, ...]:
        """Answer the result's content; never empty."""
        text = self.window.shown()
        texts: tuple[Part, ...] = (TextPart(text=text or "(no output)"),)
        return (*texts, *self.images)

    async def flush(self) -> None:
        """Store what was written since the last time, rewriting what grew too long (D30)."""
        if not self._unstored:
            return
        text = "".join(self._unstored)
        self._unstored.clear()
        size = len(text.encode())
        rewrite = self._stored_bytes + size > STORED_OUTPUT_CAPS * self._policy.bytes_max

        anew: dict[str, JsonValue] = {}

        async def build(tx: WorkingCommand) -> None:
            if rewrite:
                tx.delete_list(self._address)
                anew.update(await self._so_far())
            tx.append_list(self._address, self._window.text() if rewrite else text)

        shown = self._ctx.shown("reset", anew) if rewrite else self._ctx.shown("output", text)
        await self._ctx.commit_working(build, shows=shown)
        self._stored_bytes = (
            min(size, self._policy.bytes_max) if rewrite else (self._stored_bytes + size)
        )

    async def _so_far(self) -> dict[str, JsonValue]:
        """Answer what watchers see once the stored output is rewritten."""
        shown = with_output(ToolScratch(), self._window.text())
        checkpoint = await stored_checkpoint(self._ctx)
        return decode_json(to_raw(with_checkpoint(shown, checkpoint)))

    def _take(self, text: str) -> None:
        if text:
            self._window.add(text)
            self._unstored.append(text)
            self.pump.arrived(len(text))

    def _check(self) -> None:
        if self._ended:
            raise Closed("the call has settled; its sink takes nothing more")


async def stored_output(ctx: TaskContext, policy: OutputPolicy, *, attempt: int) -> Window:
    """Rebuild what an interrupted execution had written, from bounded pages (WS-12)."""
    window = Window(policy)
    address = ctx.scope.list(OUTPUT, str(attempt))
    after: Seq | None = None
    while True:
        page = await ctx.elements(address, ListPage(after=after, limit=OUTPUT_PAGE))
        for element in page:
            window.add(decode_json(element.value_json))
        if len(page) < OUTPUT_PAGE:
            return window
        after = page[-1].seq


async def reduced_output(
    reads: CommittedReads, task_id: Seq, *, attempt: int
) -> ToolScratch | None:
    """Answer what a live call has to show, None for nothing; its pages are bounded (X22)."""
    scope = task_scope(task_id)
    shown = ToolScratch()
    after: Seq | None = None
    while True:
        page = ListPage(after=after, limit=OUTPUT_PAGE)
        elements = await reads.elements(scope.list(OUTPUT, str(attempt)), page)
        for element in elements:
            shown = with_output(shown, decode_json(element.value_json))
        if len(elements) < OUTPUT_PAGE:
            break
        after = elements[-1].seq
    shown = with_checkpoint(shown, await reads.value(scope.value(PROGRESS)))
    return None if shown == ToolScratch() else shown


async def stored_checkpoint(ctx: TaskContext) -> Raw | None:
    """Answer an interrupted execution's newest checkpoint."""
    return await ctx.line.value(ctx.scope.value(PROGRESS))
