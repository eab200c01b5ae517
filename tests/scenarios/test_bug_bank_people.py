"""Failures that people beside a running agent met, as cases: questions, aborts, queues.

Each ends with one more message that the strict wire accepts, on every backend.
"""

import asyncio
import os
import random
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import Faulted, Rejected
from perdure.harness.approvals import list_approvals
from perdure.harness.conversation import Conversation
from perdure.harness.overview import overview
from perdure.hosts.clock import SystemClock
from perdure.kinds import launching
from perdure.ports import Replay, ToolContext
from perdure.providers.script import Reply, call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.messages import TextPart, ToolResultMessage, UserMessage
from perdure.records.models import ModelRequest
from perdure.records.seqs import Seq
from perdure.records.writes import InsertEntry, SettleTask
from perdure.testing.strict_wire import StrictWire
from perdure.toolkits.shell import shell_tools
from tests.engine import Engine, Gate, Probe, writes
from tests.scenarios.bank import Case, results_in
from tests.scenarios.test_bug_bank_store import beats


@pytest.fixture
def case(engine: Engine) -> Case:
    return Case(engine)


# BB-03, BB-05: a call that asks a person, and a disk that fails.


def counting(name: str, told: list[str], **options: Any) -> Probe:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        told.append(f"{name}{args.get('n', '')}")
        ctx.out.write(f"counted {args.get('n', '')}")

    return Probe(name, body=body, **options)


@pytest.mark.spec("BB-03", "AP-07")
async def test_finished_siblings_of_a_question_do_not_run_again(case: Case) -> None:
    told: list[str] = []

    def tools() -> list[Probe]:
        return [counting("count", told), counting("pay", told, approval="ask")]

    batch = say(call("count", {"n": 1}), call("pay"), call("count", {"n": 2}))
    root = await case.open([batch], tools())
    await root.accept("go")
    assert (await root.drive()).outcome == "suspended"
    assert sorted(told) == ["count1", "count2"]
    for _ in range(2):
        await case.engine.kill()
        root = await case.open([say("done")], tools())
        assert (await root.drive()).outcome == "suspended"
    (view,) = await list_approvals(case.engine.storage.inner)
    await case.engine.harness.decide_approval(view.id, "grant")
    await root.drive()
    assert sorted(told) == ["count1", "count2", "pay"]
    assert results_in(case.wire.accepted[-1]) == ["counted 1", "counted ", "counted 2"]
    await case.goes_on()


@pytest.mark.spec("BB-05", "FT-01", "FT-03")
@pytest.mark.parametrize("replay", ["never", "safe"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_call_whose_result_could_not_be_written_says_so(
    case: Case, replay: Replay, when: Any
) -> None:
    told: list[str] = []

    def tools() -> list[Probe]:
        return [counting("count", told, approval="ask", replay=replay)]

    root = await case.open([say(call("count"))], tools())
    await root.accept("go")
    await root.drive()
    (view,) = await list_approvals(case.engine.storage.inner)
    await case.engine.harness.decide_approval(view.id, "grant")
    case.engine.storage.fail(
        writes(SettleTask, status="done"), OSError(5, "Input/output error"), when=when
    )
    with pytest.raises(Faulted, match="Input/output"):
        await root.drive()
    with pytest.raises(Faulted, match="Input/output"):
        await root.accept("more")
    await case.engine.close()
    root = await case.open([say("done")], tools())
    await root.drive()
    outcomes = [outcome for outcome, _ in await case.results()]
    written = when == "after"
    again = replay == "safe" and not written
    assert outcomes == ["finished" if written or again else "interrupted"]
    assert told == ["count"] * (2 if again else 1)
    answers = [entry.meta.answers for entry in await case.entries() if entry.kind == "tool_result"]
    assert len(answers) == 1, "one call, one result"
    await case.goes_on()


# BB-20, BB-21: after an abort nothing goes on.

STUBBORN = "trap '' TERM; sh -c \"trap '' TERM; (while :; do echo b >> beat.txt; sleep 0.02; done) "
STUBBORN += '& wait" & echo here > told; wait'


@pytest.mark.skipif(sys.platform != "linux", reason="reads procfs to see who lives")
@pytest.mark.timeout(60)
@pytest.mark.spec("BB-20", "KT-18")
async def test_two_levels_of_shells_that_ignore_the_first_signal_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "STOP_GRACE_MS", 200)
    os.mkfifo(tmp_path / "told")
    ours = os.getpgid(0)
    wire = StrictWire(ScriptedModels(shell_script(STUBBORN), clock=SystemClock()))
    async with perdure.open(
        f"sqlite:{tmp_path / 'store.db'}",
        session="case",
        model="scripted:case",
        models=wire,
        tools=shell_tools(tmp_path),
        permissions=perdure.Permissions(yes=True),
    ) as harness:
        root = await harness.root()
        accepted = await root.accept("go")
        driving = asyncio.ensure_future(harness.drive())
        told = asyncio.get_running_loop().run_in_executor(None, (tmp_path / "told").read_text)
        assert await told == "here\n"
        assert len(beats(tmp_path)) >= 2
        await root.abort()
        assert (await root.result(accepted.input_id)).state == "open", "not said before it is so"
        await driving
        assert (await root.result(accepted.input_id)).state == "aborted"
        assert beats(tmp_path) == []
        size = (tmp_path / "beat.txt").stat().st_size
        assert (await root.prompt("one more")).text == "fine"
        assert (tmp_path / "beat.txt").stat().st_size == size
    assert os.getpgid(0) == ours


def shell_script(command: str) -> Callable[[ModelRequest], Reply]:
    def script(request: ModelRequest) -> Reply:
        newest = request.messages[len(request.messages) - 1]
        if isinstance(newest, ToolResultMessage) or "more" in str(newest.content):
            return say("fine")
        return say(call("shell", {"command": command}))

    return script


FIFTH = 5


def beating(gate: Gate, ended: list[str]) -> tuple[Probe, list[int]]:
    """A tool the model calls again and again; its fifth call waits."""
    begun: list[int] = []

    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        begun.append(len(begun) + 1)
        if len(begun) == FIFTH:
            try:
                await gate()
            except asyncio.CancelledError:
                ended.append("cancelled and awaited")
                raise

    return Probe("beat", body=body), begun


@pytest.mark.spec("BB-21", "CN-06", "CN-09")
async def test_no_call_starts_after_an_abort_and_the_running_one_is_awaited(case: Case) -> None:
    ended: list[str] = []
    gate = Gate()
    tool, begun = beating(gate, ended)
    beats_on = say(call("beat"), call("beat"), uses=3)
    root = await case.open([beats_on], [tool], settings={"tool_order": "sequential"})
    accepted = await root.accept("go")
    driving = case.engine.begin(root.drive())
    await gate.reached.wait()
    requests = len(case.wire.accepted)
    await root.abort()
    await driving
    assert len(begun) == FIFTH
    assert ended == ["cancelled and awaited"]
    assert len(case.wire.accepted) == requests
    assert [outcome for outcome, _ in await case.results()][-2:] == ["interrupted", "notStarted"]
    assert (await root.result(accepted.input_id)).state == "aborted"
    await case.goes_on()


class Thread:
    """A blocking function that writes to a file until it is told that it is enough."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.begun = asyncio.Event()
        self.enough = threading.Event()
        self._loop = asyncio.get_running_loop()

    def write_on(self) -> None:
        with self.file.open("a", encoding="utf-8") as lines:
            while not self.enough.wait(0.002):
                lines.write("beat\n")
                lines.flush()
                self._loop.call_soon_threadsafe(self.begun.set)

    async def body(self, args: Mapping[str, Any], ctx: ToolContext) -> None:
        await ctx.threads.run("beat", self.write_on)


@pytest.mark.spec("BB-21", "CN-07", "CN-11", "SC-26")
async def test_a_thread_that_cannot_be_stopped_holds_its_conversation_alone(
    case: Case, tmp_path: Path
) -> None:
    """The file stops growing before the abort is said to be done, and nobody else waits."""
    thread = Thread(tmp_path / "beats")
    script = [say(call("beat")), say("elsewhere"), say("went on")]
    root = await case.open(script, [Probe("beat", body=thread.body)])
    other = await second_conversation(case)
    prompting = case.engine.begin(root.prompt("go"))
    try:
        await thread.begun.wait()
        await root.abort()
        live = (await overview(case.engine.storage.inner)).live
        (beat,) = [task for task in live if task.kind == "tool"]
        assert (beat.name, beat.is_marked, beat.waits_for) == ("beat", True, "its cancellation")
        queued = await root.accept("meanwhile")
        assert (await root.result(queued.input_id)).state == "queued"
        assert (await other.prompt("hi")).text == "elsewhere"
        assert not prompting.done(), "not said before it is so"
    finally:
        thread.enough.set()
    assert (await prompting).state == "aborted"
    size = thread.file.stat().st_size
    await root.drive()
    assert (await root.result(queued.input_id)).text == "went on"
    assert thread.file.stat().st_size == size > 0
    for one in threading.enumerate():
        if "beat" in one.name:
            one.join(9)  # its work is over; the thread itself ends a moment later
            assert not one.is_alive()
    await case.goes_on()


async def second_conversation(case: Case) -> Conversation:
    made: list[Seq] = []
    await case.engine.harness.command(lambda tx: made.append(tx.insert_conversation()))
    other = await case.engine.harness.conversation(made[0])
    assert other is not None
    return other


# BB-22, BB-23, BB-24: what is said while the agent works.


async def slow_batch(case: Case, *then: Reply) -> tuple[Any, Gate]:
    gate = Gate()
    tools = [Probe("a", gate=gate), Probe("b"), Probe("c")]
    root = await case.open([say(call("a"), call("b"), call("c")), *then], tools)
    await root.accept("go")
    case.engine.begin(root.drive())
    await gate.reached.wait()
    return root, gate


STEER = "stop, use the other file"


@pytest.mark.spec("BB-22", "QU-07")
async def test_what_waits_at_an_abort_comes_back_with_its_text(case: Case) -> None:
    root, _ = await slow_batch(case)
    steered = await root.steer(STEER)
    report = await root.abort()
    (drained,) = report.drained
    assert drained.input_id == steered.input_id
    assert [m.content for m in drained.messages] == [(TextPart(text=STEER),)]
    assert (await root.result(steered.input_id)).state == "withdrawn"
    assert (await root.state()).inbox == ()
    await root.drive()
    request = await case.goes_on()
    assert STEER not in str(request.messages[:])


@pytest.mark.spec("BB-22", "RC-25", "QU-13")
@pytest.mark.parametrize("end", ["abort", "kill before", "kill after"])
async def test_at_the_boundary_it_is_placed_or_still_queued(case: Case, end: str) -> None:
    root, gate = await slow_batch(case)
    steered = await root.steer(STEER)
    held = case.engine.storage.hold(
        lambda commit: any(isinstance(w, InsertEntry) and w.ref == steered.input_id
                           for w in commit.writes),
        when="after" if end == "kill after" else "before",
    )  # fmt: skip
    gate.open()
    await held.reached.wait()
    if end == "abort":
        aborting = case.engine.begin(root.abort())
        await asyncio.sleep(0)
        held.open()
        assert (await aborting).drained == (), "the boundary came first"
        await root.drive()
        assert (await root.result(steered.input_id)).state == "aborted"
    else:
        await case.engine.kill()
        root = await case.open([say("changed")], [Probe(name) for name in "abc"])
        state = (await root.result(steered.input_id)).state
        inbox = [item.id for item in (await root.state()).inbox]
        assert (state, inbox) == (
            ("queued", [steered.input_id]) if end == "kill before" else ("open", [])
        )
        await root.drive()
        assert (await root.result(steered.input_id)).text == "changed"
    placed = [entry for entry in await case.entries() if entry.ref == steered.input_id]
    assert len(placed) == 1
    await case.goes_on()


TURNS = 500


@pytest.mark.spec("BB-23", "QU-06", "QU-11", "QU-17")
async def test_what_is_said_around_the_last_answer_is_answered(case: Case) -> None:
    chance = random.Random(23)
    root = await case.open([say("yes", when="say", uses=0)])
    asked: list[Seq] = []

    async def talk() -> None:
        for n in range(TURNS):
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            verb = chance.choice([root.accept, root.steer, root.follow_up])
            asked.append((await verb(f"say {n}")).input_id)

    talking = case.engine.begin(talk())
    while not talking.done() or (await root.state()).inbox:
        # What was steered or queued while nobody ran waits for a run, which somebody starts.
        with suppress(Rejected):
            await root.flush()
        await root.drive()
        await asyncio.sleep(0)
    assert (await root.state()).inbox == ()
    assert len(asked) == TURNS
    states = {(await root.result(one)).state for one in asked}
    assert states == {"answered"}
    await case.goes_on()


@pytest.mark.spec("BB-24", "QU-05", "QU-15")
async def test_a_steer_stands_after_the_results_as_an_entry_of_its_own(case: Case) -> None:
    gate = Gate()
    tools = [Probe("a", gate=gate), Probe("b"), Probe("c")]
    root = await case.open(
        [say(call("a"), call("b"), call("c")), say("steered"), say("followed")], tools
    )
    await root.accept("go")
    driving = case.engine.begin(root.drive())
    await gate.reached.wait()
    follow = await root.follow_up("F")
    steer = await root.steer("S")
    gate.open()
    await driving
    second, third = case.wire.accepted[1:3]
    assert results_in(second) == ["a ran", "b ran", "c ran"]
    said = [
        "".join(part.text for part in message.content if isinstance(part, TextPart))
        for message in second.messages
        if isinstance(message, UserMessage)
    ]
    assert said == ["go", "S"]
    assert isinstance(second.messages[len(second.messages) - 1], UserMessage)
    assert "F" in str(third.messages[len(third.messages) - 1])
    for accepted, text in ((steer, "steered"), (follow, "followed")):
        result = await root.result(accepted.input_id)
        assert (result.input_id, result.text) == (accepted.input_id, text)
    assert not [text for _, text in await case.results() if "S" in text or "F" in text]
    await case.goes_on()
