"""Which commits are barriers: exactly those that somebody acts on or is told of (BR-02, BR-05)."""

from collections.abc import Sequence

import pytest

from perdure.providers.script import call, fail, say
from perdure.records.seqs import NO_SEQ, Seq
from perdure.records.writes import Commit, InsertConversation, PatchTask, SetValue
from tests.engine import Engine, Gate, Probe
from tests.scenarios.bank import Case


@pytest.fixture
def case(engine: Engine) -> Case:
    return Case(engine)


def why(commit: Commit) -> str:
    """Say in one word what a barrier commit is for."""
    for write in commit.writes:
        match write:
            case InsertConversation():
                return "creation"
            case PatchTask(status="running"):
                return "intent"
            case PatchTask(status="deferred"):
                return "deferred"
            case PatchTask(abort_requested=True):
                return "abort"
            case SetValue(namespace="perdure.input"):
                return "acceptance"
            case _:
                continue
    return f"unknown: {commit}"


def reasons(case: Case, after: Seq = NO_SEQ) -> list[str]:
    barriers: Sequence[Commit] = case.engine.storage.barriers
    return [why(commit) for commit in barriers if commit.first_seq > after]


@pytest.mark.spec("BR-02", "BR-05")
@pytest.mark.parametrize(
    ("tools", "intents"),
    [([], 0), (["look"], 0), (["look", "look"], 0), (["pay"], 1), (["pay", "look", "pay"], 2)],
    ids=str,
)
async def test_a_turn_syncs_its_acceptance_and_its_unsafe_intents(
    case: Case, tools: list[str], intents: int
) -> None:
    probes = [Probe("look", replay="safe"), Probe("pay")]
    script = [say(*map(call, tools)), say("done")] if tools else [say("done")]
    root = await case.open(script, probes)
    assert reasons(case) == ["creation"]
    before = case.engine.storage.last_seq
    assert (await root.prompt("go")).text == "done"
    assert sorted(reasons(case, before)) == ["acceptance"] + ["intent"] * intents
    await case.goes_on()


@pytest.mark.spec("BR-02")
async def test_queueing_and_aborting_are_synced_and_retries_are_not(case: Case) -> None:
    root = await case.open([fail("overloaded"), say(call("pay"))], [Probe("pay", gate=Gate())])
    before = case.engine.storage.last_seq
    await root.accept("go")
    await root.accept("and then")
    driving = case.engine.begin(case.patient(root.drive()))
    gated = case.engine.storage.until(lambda commit: why(commit) == "intent")
    await gated
    await root.abort()
    await driving
    told = reasons(case, before)
    assert told == ["acceptance", "acceptance", "intent", "abort"]
    await case.goes_on()
