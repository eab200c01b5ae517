"""Every seam to the outside, as Protocols, in one file.

The engine asks the world for commits, models, tools, processes, files, time, random numbers,
threads and telemetry through these alone. Each has a public suite in `perdure.testing`.

Rules: a cancelled `commit` is neither lost nor split; a `Storage` in a forked process raises before
writing; `reconcile` may be called often. A method that answers nothing is its docstring alone.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from perdure.records.addresses import Address
from perdure.records.conversations import ConversationState
from perdure.records.entries import Entry, ModelId
from perdure.records.files import FileInfo, FileSlice, GlobResult, SearchQuery, SearchResult
from perdure.records.frames import Frame
from perdure.records.launches import Exited, LaunchRef, LaunchSpec, Lost, NeverRan, Running
from perdure.records.messages import ImagePart, Usage
from perdure.records.models import DeferredHandle, ModelInfo, ModelOutcome, ModelRequest
from perdure.records.seqs import Seq
from perdure.records.sessions import (
    ConversationScan,
    Created,
    EntryScan,
    ListElement,
    ListPage,
    Opening,
    SessionInfo,
    StoredValue,
    TaskScan,
)
from perdure.records.strict_json import JsonObject, JsonValue
from perdure.records.tasks import Task
from perdure.records.writes import Commit

T = TypeVar("T")


class Clock(Protocol):
    """Time. Only `now_ms` is ever stored."""

    def now_ms(self) -> int:
        """Answer wall milliseconds."""
        ...

    def monotonic_ms(self) -> int:
        """Answer milliseconds for deadlines inside one process."""
        ...

    async def sleep(self, ms: int) -> None:
        """Wait; cancellable."""


class Randomness(Protocol):
    """Random text: ids, nonces, handles, secrets (K42)."""

    def token(self, nbytes: int) -> str:
        """Answer `nbytes` random bytes as lower-case hex."""
        ...


class Threads(Protocol):
    """Daemon threads, never asyncio's default pool (K08, SC-26)."""

    async def run(self, name: str, work: Callable[[], T]) -> T:
        """Run blocking work on a daemon thread of that name; cancelling abandons the thread."""
        ...

    def stuck(self) -> Sequence[str]:
        """Name the threads whose waiter was cancelled and that still run."""
        ...


class Span(Protocol):
    """One telemetry span: ids, names, counts, durations, statuses, usage; nothing else (TM-02)."""

    def set(self, **facts: str | int | float | bool) -> None:
        """Add facts."""


class Telemetry(Protocol):
    """Where spans go."""

    @property
    def is_on(self) -> bool:
        """Say whether anybody listens; nothing asks for a span while nobody does."""
        ...

    def span(self, name: str, /, **facts: str | int | float | bool) -> AbstractContextManager[Span]:
        """Open a span under the current one."""
        ...


class Storage(Protocol):
    """One session, one writer; every read sees one committed state and answers snapshots."""

    @property
    def info(self) -> SessionInfo:
        """Answer id, name, format and epoch."""
        ...

    @property
    def last_seq(self) -> Seq:
        """Answer the highest committed seq, working commits included (ST-05)."""
        ...

    async def commit(self, commit: Commit, *, barrier: bool) -> None:
        """Persist one batch whose seqs are last_seq+1, +2, …; return once it is visible to reads.

        With `barrier`, and durability "power", it and all before it are on disk first (K03).

        Raises:
            Rejected: `invariant`, before admission; nothing changed and no seq was used.
            Faulted: after admission; the batch is on disk whole or not at all.
        """

    async def commits(self, *, after: Seq, limit: int) -> Sequence[Commit]:
        """Answer main commits in order, `after` exclusive (a commit's end), limit 1 to 1,000."""
        ...

    async def boundary_at(self, time_ms: int) -> Seq:
        """Answer the last main commit's end at or before a wall time, 0 when there is none."""
        ...

    async def openings(self, *, limit: int) -> Sequence[Opening]:
        """Answer who opened the session when, newest first."""
        ...

    async def conversations(
        self, ids: Sequence[Seq], *, as_of: Seq | None = None
    ) -> Mapping[Seq, ConversationState]:
        """Answer conversations, now or at a main boundary; absent ones are missing."""
        ...

    async def scan_conversations(self, scan: ConversationScan) -> Sequence[ConversationState]:
        """Answer a page of conversations by id."""
        ...

    async def entries(self, ids: Sequence[Seq]) -> Mapping[Seq, Entry]:
        """Answer entries with payloads; absent ones are missing."""
        ...

    async def scan_entries(self, scan: EntryScan) -> Sequence[Entry]:
        """Answer a page of entries by id, local to the conversation."""
        ...

    async def tasks(self, ids: Sequence[Seq], *, as_of: Seq | None = None) -> Mapping[Seq, Task]:
        """Answer tasks as they are, or were at a main boundary (TI-02)."""
        ...

    async def scan_tasks(self, scan: TaskScan) -> Sequence[Task]:
        """Answer a page of tasks by id."""
        ...

    async def value(self, address: Address, *, as_of: Seq | None = None) -> StoredValue | None:
        """Answer the scalar at an address; `as_of` applies to conversation addresses only."""
        ...

    async def scan_values(
        self, prefix: Address, *, after: str | None, limit: int, as_of: Seq | None = None
    ) -> Sequence[StoredValue]:
        """Answer values of a namespace whose key starts with the prefix's, by key, now or then."""
        ...

    async def elements(self, address: Address, page: ListPage) -> Sequence[ListElement]:
        """Answer a page of a list, inherited ranges included."""
        ...

    async def close(self) -> None:
        """Stop admission, finish admitted writes, release everything; retire nothing (ST-26)."""


class Sessions(Protocol):
    """One container of many sessions: a file, a folder, a schema."""

    async def open(
        self, name: str, *, create: bool, read_only: bool = False, control: str | None = None
    ) -> Storage:
        """Open a session by name, taking its writer lock and the next epoch unless read-only.

        Creating makes an empty session (no seq used); `control` is where the owner listens (CM-16).

        Raises:
            Rejected: `not_found` for an absent session without `create`; `invariant`: bad name.
            StorageBusy, FormatUnsupported, StorageDamaged: as they say; nothing was changed.
        """
        ...

    async def page(self, *, after: str | None, limit: int) -> Sequence[SessionInfo]:
        """Answer sessions by name bytes; opens and locks nothing (SN-07)."""
        ...

    async def find(self, session_id: str) -> SessionInfo:
        """Answer a session by its permanent id; raises Rejected `not_found`."""
        ...

    async def create(self, name: str, *, request_id: str | None = None) -> Created:
        """Make an empty session; a repeat of its request id answers the first one (WB-08).

        Raises:
            Rejected: `invariant` for a bad or taken name, `request_conflict` when the request id
                made a session of another name, `deleted` when what it made is gone.
        """
        ...

    async def rename(self, old: str, new: str) -> None:
        """Give a session a new unique name."""

    async def delete(self, name: str) -> None:
        """Delete a session that nobody owns; whole or not at all."""

    async def close(self) -> None:
        """Close the container and what is open in it."""


class ModelStream(Protocol):
    """One running model request."""

    def __aiter__(self) -> AsyncIterator[Frame]:
        """Yield frames until the reply ends; ending early is for `outcome` to explain."""
        ...

    async def outcome(self) -> ModelOutcome:
        """Answer the reply or handle; raises ProviderError with partial and usage."""
        ...


class Models(Protocol):
    """The models a host offers; secrets and vendor clients live behind it (PV-01)."""

    async def describe(self, model: ModelId) -> ModelInfo:
        """Say what a model can do. Raises Rejected `invariant` for an unknown provider."""
        ...

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[ModelStream]:
        """Start one request; one attempt is one HTTP request (PV-05)."""
        ...

    async def poll(self, handle: DeferredHandle) -> ModelOutcome:
        """Ask for deferred work once; a handle in the outcome means still pending."""
        ...

    async def cancel(self, handle: DeferredHandle) -> None:
        """Cancel deferred work; harmless after completion."""

    async def close(self) -> None:
        """Release clients and servers."""


class ProcessHost(Protocol):
    """Commands that outlive a killed harness and can be found again (D06, TL-33)."""

    @property
    def adopts(self) -> bool:
        """Say whether a restarted host can find what a killed one started."""
        ...

    async def launch(self, spec: LaunchSpec) -> Running | Exited:
        """Start a command whose place is already committed."""
        ...

    async def reconcile(self, ref: LaunchRef) -> NeverRan | Running | Exited | Lost:
        """Find out what became of a launch; `NeverRan` also makes sure it never will."""
        ...

    async def wait(self, ref: LaunchRef) -> Exited | Lost:
        """Wait for the end."""
        ...

    async def stop(self, ref: LaunchRef, *, grace_ms: int) -> Exited | Lost:
        """Stop the whole group: TERM, grace, KILL; no process of it lives afterwards."""
        ...

    async def log(self, ref: LaunchRef, *, offset: int, limit: int) -> bytes:
        """Read output as written, from a byte offset."""
        ...

    async def forget(self, ref: LaunchRef) -> None:
        """Remove the launch folder of an ended launch whose result is stored; it never starts."""


class Files(Protocol):
    """Files under one root; never follows a link outside it (KT-03 to KT-05)."""

    async def read(self, path: str, *, offset: int, limit: int) -> FileSlice:
        """Read bytes."""
        ...

    async def write(self, path: str, data: bytes, *, expect: str | None) -> str:
        """Replace a file by rename; `expect` is the digest before (None: absent); answers after."""
        ...

    async def list(self, path: str, *, depth: int, limit: int) -> Sequence[FileInfo]:
        """List a folder, sorted by name bytes."""
        ...

    async def glob(self, pattern: str, *, limit: int, ignored: bool = False) -> GlobResult:
        """Match paths, sorted; `ignored` also those that `.gitignore` files name (KT-14)."""
        ...

    async def search(self, query: SearchQuery) -> SearchResult:
        """Search file contents."""
        ...


class Signal(Protocol):
    """Why a running invocation should end; read-only, safe from a thread (SC-25)."""

    @property
    def is_set(self) -> bool:
        """Say whether it fired."""
        ...

    @property
    def reason(self) -> Literal["abort", "close"] | None:
        """Say why."""
        ...

    async def wait(self) -> None:
        """Wait until it fires."""


class Memos(Protocol):
    """Durable notes of one tool execution; they vanish with its settlement (TL-25)."""

    async def get(self, key: str) -> JsonValue:
        """Answer a memo, None when there is none."""
        ...

    async def set(self, key: str, value: JsonValue) -> None:
        """Store a memo; durable when it returns."""


class ToolSink(Protocol):
    """Where a tool puts what it has to say; refused after it settled (TL-31)."""

    @property
    def memo(self) -> Memos:
        """Answer the execution's memos."""
        ...

    def write(self, text: str) -> None:
        """Add output text; capped by the tool's output policy."""

    def details(self, value: JsonValue) -> None:
        """Set the result's details; replaced on repeat."""

    def image(self, image: ImagePart) -> None:
        """Add an image block to the result."""

    def error(self, *, is_error: bool = True) -> None:
        """Mark the result as an error without raising."""

    def usage(self, usage: Usage) -> None:
        """Report usage; stored with the outcome."""

    def handoff(self, text: str) -> None:
        """Ask for a context reset to this text after the exchange."""

    def add_tools(self, names: Sequence[str]) -> None:
        """Add tools to the active ones at settlement; unknown names are dropped."""

    def terminate(self, *, value: bool = True) -> None:
        """Ask that the run stops after this exchange."""

    async def progress(self, partial: JsonObject) -> None:
        """Store a checkpoint; durable when it returns, reported by recovery (TL-24)."""


class ConversationReader(Protocol):
    """What tools and kinds may read of a conversation; never writes."""

    @property
    def id(self) -> Seq:
        """Answer the conversation's id."""
        ...

    async def state(self) -> ConversationState:
        """Answer its state."""
        ...

    async def entry(self, entry_id: Seq) -> Entry | None:
        """Answer an entry of it or of its inherited prefix."""
        ...

    async def task(self, task_id: Seq) -> Task | None:
        """Answer a task of it."""
        ...


class ToolContext(Protocol):
    """What a running tool is given (seed 16)."""

    @property
    def signal(self) -> Signal:
        """Answer why it should end."""
        ...

    @property
    def invocation_id(self) -> Seq:
        """Answer the task's id: the harness's name of this execution (TL-30)."""
        ...

    @property
    def call_id(self) -> str:
        """Answer the provider's name of the call."""
        ...

    @property
    def conv(self) -> ConversationReader:
        """Answer the conversation it runs in."""
        ...

    @property
    def out(self) -> ToolSink:
        """Answer where output goes."""
        ...

    @property
    def resources(self) -> Mapping[str, object]:
        """Answer what the host handed over at open (TL-34)."""
        ...

    @property
    def threads(self) -> Threads:
        """Answer where blocking work runs."""
        ...


class OutputPolicy(Protocol):
    """How much of a tool's text is kept, and which end (TL-20)."""

    @property
    def retain(self) -> Literal["head", "tail"]:
        """Say which end is kept."""
        ...

    @property
    def bytes_max(self) -> int:
        """Say how many bytes are kept."""
        ...


Replay = Literal["safe", "never"]
Approval = Literal["allow", "ask", "deny"]

ApprovalFunction: TypeAlias = Callable[[Mapping[str, Any]], Approval | Awaitable[Approval]]
"""Asked for each call with its checked arguments; not async, it runs on a thread (AQ-01)."""


class Tool(Protocol):
    """One thing a model may call."""

    @property
    def name(self) -> str:
        """Answer the name the model calls."""
        ...

    @property
    def description(self) -> str:
        """Answer what it does, for the model."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Answer the JSON Schema of its arguments object."""
        ...

    @property
    def replay(self) -> Replay:
        """Say whether it may run again after an interruption (TL-28)."""
        ...

    @property
    def approval(self) -> Approval | ApprovalFunction:
        """Say whether its calls run, ask a person, or are refused."""
        ...

    @property
    def output(self) -> OutputPolicy:
        """Answer its output cap."""
        ...

    def check(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer the arguments, coerced to the schema; raises InvalidArguments with the path."""
        ...

    async def execute(self, args: Mapping[str, Any], ctx: ToolContext) -> object:
        """Run. A raw tool answers None; anything else is judged by the tool kind (TL-32)."""
        ...


@runtime_checkable
class LaunchingTool(Protocol):
    """A tool whose work is one command: the tool kind launches, waits, and recovers it (TL-33)."""

    def launch(self, args: Mapping[str, Any], ref: LaunchRef) -> LaunchSpec:
        """Answer what to start; raises ToolFailed when it may not."""
        ...

    def timeout_ms(self, args: Mapping[str, Any]) -> int:
        """Answer how long the command may run."""
        ...

    async def report(
        self,
        args: Mapping[str, Any],
        ctx: ToolContext,
        ended: Exited | Lost,
        *,
        timed_out: bool,
        host: ProcessHost,
        ref: LaunchRef,
    ) -> None:
        """Write the result of an ended command to the sink."""
