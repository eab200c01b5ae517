"""The scripted session of the rig, as one child process lives it.

A message asks for four parallel calls: two `safe`, two `never`, and a shell command. The first
attempt of each request may fail and is retried; a second message is accepted while the tools run
and is queued. Whoever lives next says the same messages again under their request ids, as a client
does whose answer was lost.

Witnesses outside the store, one synced line each: `counter` (effects), `acks` (acceptances that
were answered), `usage` (requests that reported), `refused` (requests a strict provider refuses).
"""

import asyncio
import contextlib
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct

from perdure.harness.conversation import Conversation
from perdure.harness.harness import Harness
from perdure.harness.options import HarnessOptions
from perdure.hosts.processes import LocalProcesses
from perdure.kinds.permissions import Permissions
from perdure.opening import OpenOptions, Ports, SilentTelemetry, initial_settings, system_ports
from perdure.ports import Models, ProcessHost, Storage, Tool, ToolContext
from perdure.providers.script import Reply, call, fail, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.messages import TextPart, ToolResultMessage, Usage, UserMessage
from perdure.records.models import ModelRequest, parse_model
from perdure.records.settings import RetryPolicy
from perdure.storage.sqlite import SqliteSessions
from perdure.testing.crash_rig.audit import (
    Journal,
    TaskRow,
    end_faults,
    outcome_faults,
    usage_faults,
)
from perdure.testing.crash_rig.points import (
    PointedModels,
    PointedProcesses,
    PointedStorage,
    Points,
)
from perdure.testing.crash_rig.trial import Trial
from perdure.testing.effect_counter import EffectCounter
from perdure.testing.strict_wire import refusals
from perdure.toolkits.define import tool
from perdure.toolkits.shell import shell_tools

MODEL: Final = "scripted:story"
SESSION: Final = "story"
SAFE: Final = frozenset({"look"})
FIRST, SECOND, LAST = "do the work", "and then this", "one more message"
REQUESTS: Final = MappingProxyType({"web-1": FIRST, "web-2": SECOND})

EFFECT_MS: Final = 12
"""How long a tool takes on each side of its effect."""

COMMAND: Final = "printf 'shell:\\n' >> counter; sleep $STORY_SECONDS; echo the command ended"
BASE_DELAY_MS: Final = 4
ANSWER: Final = "What was found, at length. " * 200
"""Longer than one batch of frames, so that streaming commits."""

SETTLING_S: Final = 0.004
PAGE: Final = 500
USAGE: Final = Usage(input=10, output=5)


class Ending(Struct, frozen=True, kw_only=True):
    """What the last life of a trial found."""

    faults: tuple[str, ...]
    commits: int
    effects: int
    outcomes: tuple[str, ...]


class Witness:
    """Files outside the store that a trial writes to and an audit reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.effects = EffectCounter(folder / "counter")

    def note(self, name: str, line: str) -> None:
        """Append a line, on disk when this returns."""
        EffectCounter(self.folder / name).add(line)

    def lines(self, name: str) -> Sequence[str]:
        """Answer a file's lines."""
        path = self.folder / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else ()

    def counted(self) -> int:
        """Count the effects of tools that run in the harness's own process."""
        return sum(not line.startswith("shell") for line in self.lines("counter"))

    def count_of(self, task: TaskRow) -> int:
        """Count the executions of one call; the story has one command only."""
        name = task.state["name"]
        if name == "shell":
            return self.effects.count("shell:")
        keys = [key for key in self.lines("counter") if key.startswith(f"{name}:")]
        return sum(key.endswith(f":{task.id}") for key in keys)

    def doubled(self) -> list[str]:
        """Say what was done twice that may be done once: by its arguments, whatever call it was.

        A power cut may lose a call with all that led to it, and the model then asks again under
        another id; the world was changed twice all the same.
        """
        deeds = Counter(key.rpartition(":")[0] for key in self.lines("counter"))
        return [
            f"{deed!r} was done {count} times"
            for deed, count in deeds.items()
            if count > 1 and deed.partition(":")[0] not in SAFE
        ]


def tools(folder: Path, witness: Witness, points: Points, started: asyncio.Event) -> Sequence[Tool]:
    """Make the story's tools."""

    async def act(name: str, what: int, ctx: ToolContext) -> str:
        started.set()
        with points.in_flight("effect"):
            await asyncio.sleep(EFFECT_MS / 1000)
            points.reach("effect.before")
            witness.effects.add(f"{name}:{what}:{ctx.invocation_id}")
            points.reach("effect.after")
            await ctx.out.progress({"step": 1})
            await asyncio.sleep(EFFECT_MS / 1000)
        return f"{name} is done"

    @tool(replay="safe")
    async def look(at: int, ctx: ToolContext) -> str:
        """Look at something."""
        return await act("look", at, ctx)

    @tool
    async def pay(amount: int, ctx: ToolContext) -> str:
        """Pay an amount."""
        return await act("pay", amount, ctx)

    return (look, pay, *shell_tools(folder, env=["STORY_SECONDS"]))


def reply_to(request: ModelRequest) -> Reply:
    """Play the model: what it says depends on the request alone, so every life agrees."""
    newest = request.messages[len(request.messages) - 1]
    if isinstance(newest, ToolResultMessage):
        return say(ANSWER, usage=USAGE, chunk=600)
    assert isinstance(newest, UserMessage)
    text = "".join(part.text for part in newest.content if isinstance(part, TextPart))
    if text == FIRST:
        if request.attempt == 1:
            return _reporting(fail("overloaded"))
        calls = (
            call("look", {"at": 1}),
            call("pay", {"amount": 10}),
            call("shell", {"command": COMMAND}),
            call("pay", {"amount": 99}),
            call("look", {"at": 2}),
        )
        return say("I will.", *calls, usage=USAGE, delays_ms={1: 5})
    if text == SECOND and request.attempt == 1:
        return _reporting(fail("network", "Half of an"))
    return say(f"As to {text!r}: yes.", usage=USAGE, delays_ms={1: 5})


def _reporting(reply: Reply) -> Reply:
    """A failed request is billed too."""
    return msgspec.structs.replace(reply, usage=USAGE)


class Stage:
    """One open session of a trial, behind pointed ports."""

    def __init__(self, trial: Trial, points: Points, ports: Ports) -> None:
        self.folder = Path(trial.folder)
        self.witness = Witness(self.folder)
        self.points = points
        self.started = asyncio.Event()
        self._ports = ports
        self._sessions = SqliteSessions(
            self.folder / "store.db",
            durability=trial.durability,
            clock=ports.clock,
            randomness=ports.randomness,
        )

    async def open(self) -> tuple[Harness, Storage]:
        """Open storage and harness; opening an existing session must change nothing (OP-01)."""
        self.points.reach("open.before")
        await self._list()
        storage = await self._sessions.open(SESSION, create=True)
        head, counted = storage.last_seq, self.witness.counted()
        pointed: Any = PointedStorage(storage, self.points)
        harness = await Harness.open(pointed, self._options())
        # What an opening has started by mistake gets a moment to show itself.
        await asyncio.sleep(SETTLING_S)
        if head and (storage.last_seq, self.witness.counted()) != (head, counted):
            self.witness.note("refused", f"opening moved the head {head} or the counter {counted}")
        self.points.reach("open.after")
        return harness, pointed

    async def _list(self) -> None:
        """A session that was being created is listed whole or not at all (SN-05)."""
        if not (self.folder / "store.db").exists():
            return
        listed = await self._sessions.page(after=None, limit=10)
        if not all(info.name == SESSION and info.damaged is None for info in listed[:1]):
            self.witness.note("refused", f"the listing shows {listed}")
        if len(listed) > 1:
            self.witness.note("refused", f"{len(listed)} sessions are listed")

    async def close(self, harness: Harness) -> None:
        """Close everything."""
        self.points.reach("close.before")
        await harness.close(grace=5)
        await self._sessions.close()
        self.points.reach("close.after")

    def _options(self) -> HarnessOptions:
        ports = self._ports
        models: Any = PointedModels(
            ScriptedModels(reply_to, clock=ports.clock),
            self.points,
            check=self._check,
            report=lambda request: self.witness.note(
                "usage", f"{request.task_id} {request.attempt}"
            ),
        )
        processes: Any = PointedProcesses(
            LocalProcesses(self.folder / "launch", ports.threads), self.points
        )
        return options(
            ports=ports,
            models=models,
            processes=processes,
            tools=tools(self.folder, self.witness, self.points, self.started),
            on_error=lambda error, task: self.witness.note(
                "refused", f"task {task}: {type(error).__name__}: {error}".replace("\n", " ")
            ),
        )

    def _check(self, request: ModelRequest) -> None:
        for refusal in refusals(request):
            self.witness.note("refused", f"strict wire: {refusal}")


def options(
    *,
    ports: Ports,
    models: Models,
    tools: Sequence[Tool],
    processes: ProcessHost | None = None,
    on_error: Callable[[BaseException, int | None], None] | None = None,
) -> HarnessOptions:
    """Compose a harness's options the way `perdure.open` does, over ports of one's own."""
    chosen = OpenOptions(
        session=SESSION,
        model=MODEL,
        retry=RetryPolicy(max_attempts=12, base_delay_ms=BASE_DELAY_MS, max_delay_ms=50),
    )
    return HarnessOptions(
        models=models,
        clock=ports.clock,
        randomness=ports.randomness,
        threads=ports.threads,
        telemetry=SilentTelemetry(),
        initial=initial_settings(chosen, parse_model(MODEL)),
        tools=tools,
        processes=processes,
        permissions=Permissions(yes=True),
        on_error=on_error,
    )


async def live(trial: Trial, points: Points, *, last: bool) -> Ending | None:
    """Live one life; the last one audits."""
    stage = Stage(trial, points, system_ports())
    harness, storage = await stage.open()
    root = await harness.root()
    await _say(stage, root, "web-1")
    if trial.queue_first:
        await _say(stage, root, "web-2")
    driving = asyncio.create_task(harness.drive())
    begun = asyncio.create_task(stage.started.wait())
    await asyncio.wait({driving, begun}, return_when=asyncio.FIRST_COMPLETED)
    begun.cancel()
    await _say(stage, root, "web-2")
    if trial.early_close and not last:
        await stage.close(harness)
        await driving
        return None
    await driving
    await harness.drive()
    if not last:
        await stage.close(harness)
        return None
    result = await root.prompt(LAST)
    if result.state != "answered":
        stage.witness.note("refused", f"the last message ended {result.state}: {result.error}")
    journal, faults = await _audit(stage, storage)
    head = storage.last_seq
    await stage.close(harness)
    faults += await _closed_faults(stage, head)
    return Ending(
        faults=tuple(faults),
        commits=journal.commits,
        effects=sum(stage.witness.effects.counts().values()),
        outcomes=tuple(row.outcome for row in sorted(journal.results, key=lambda r: r.call_index)),
    )


async def _say(stage: Stage, root: Conversation, request_id: str) -> None:
    accepted = await root.accept(REQUESTS[request_id], request_id=request_id)
    stage.witness.note("acks", f"{request_id} {accepted.input_id}")


async def _audit(stage: Stage, storage: Storage) -> tuple[Journal, list[str]]:
    witness = stage.witness
    journal = await read_journal(storage)
    reported = [line.split() for line in witness.lines("usage")]
    faults = [
        *witness.lines("refused"),
        *end_faults(journal),
        *outcome_faults(journal, witness.count_of, safe=SAFE),
        *usage_faults(journal, [(int(task), int(attempt)) for task, attempt in reported]),
        *witness.doubled(),
        *_ack_faults(journal, witness),
        *_process_faults(journal),
    ]
    return journal, faults


async def read_journal(storage: Storage) -> Journal:
    """Fold all main commits of a session."""
    journal = Journal()
    after = journal.last_seq
    while page := await storage.commits(after=after, limit=PAGE):
        journal.fold(page)
        after = journal.last_seq
    return journal


def _ack_faults(journal: Journal, witness: Witness) -> list[str]:
    """Every acceptance that was answered is there, under one id, and answered in the end."""
    faults: list[str] = []
    for line in witness.lines("acks"):
        request_id, input_id = line.split()
        if journal.requests.get(request_id) != int(input_id):
            faults.append(f"{request_id} was accepted as {input_id}, the store says otherwise")
    for request_id, input_id in journal.requests.items():
        record = journal.inputs[input_id]
        if record["state"] != "answered":
            faults.append(f"{request_id} (input {input_id}) ended as {record}")
    return faults


def _process_faults(journal: Journal) -> list[str]:
    """No process of a call is alive once its result is stored (TL-33); seen on Linux only."""
    nonces = [
        task.state["launch"]["nonce"].encode()
        for task in journal.tasks.values()
        if task.state.get("launch")
    ]
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            environment = path.read_bytes()
            found += [f"process {path.parent.name} lives on" for n in nonces if n in environment]
    return found


async def _closed_faults(stage: Stage, head: int) -> list[str]:
    """A clean close leaves everything, and no write-ahead file (BR-09)."""
    ports = system_ports()
    sessions = SqliteSessions(
        stage.folder / "store.db", clock=ports.clock, randomness=ports.randomness
    )
    storage = await sessions.open(SESSION, create=False, read_only=True)
    faults = [] if storage.last_seq == head else [f"{storage.last_seq} after close, not {head}"]
    await sessions.close()
    if (stage.folder / "store.db-wal").exists():
        faults.append("a write-ahead file is left after close")
    return faults


def child(trial: Trial, points: Points, *, last: bool) -> None:
    """Live a life to its end in a forked child and leave without the parent's cleanup."""
    os.chdir(trial.folder)
    os.environ["STORY_SECONDS"] = str(trial.command_s)
    code = 1
    try:
        ending = asyncio.run(live(trial, points, last=last))
        if ending is not None:
            Path("ending.json").write_bytes(msgspec.json.encode(ending))
        code = 0
    except BaseException:  # noqa: BLE001 - said in a file that the report quotes, then the child ends
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
