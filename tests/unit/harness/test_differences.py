"""What two histories do not share, and what stays in the world when one goes back."""

import pytest
from msgspec import UNSET

from perdure.errors import Rejected
from perdure.harness.differences import Moment, difference
from perdure.harness.effects import effects_after
from perdure.providers.script import call, say
from perdure.records.addresses import ConversationList, ConversationValue
from perdure.records.messages import Usage
from perdure.records.seqs import Seq
from perdure.records.writes import InsertEntry
from tests.engine import Engine, Gate, Probe, writes

PLAN = ConversationValue[object]("test.plan")
KEPT = ConversationValue[object]("test.kept")
USED = Usage(input=10, output=2)
STEPS = ConversationList[object]("test.steps")


async def now(engine: Engine, conv_id: Seq) -> Moment:
    return Moment(conversation=conv_id, as_of=await engine.line.boundary())


async def test_two_commits_of_one_conversation(engine: Engine) -> None:
    root = await engine.root([say("one", usage=USED), say("two", usage=USED)])
    await root.set_value(PLAN, 1)
    await root.set_value(KEPT, 1)
    await root.prompt("first")
    before = (await root.state()).commit_end
    await root.set_value(PLAN, 2)
    await root.set_value(KEPT, 2)
    await root.set_value(KEPT, 1)
    element = await root.append_list(STEPS, "x")
    second = await root.prompt("second")
    past = Moment(conversation=root.id, as_of=before)
    found = await difference(engine.storage.inner, past, await now(engine, root.id))
    assert found.parted == before
    assert not found.left.entries
    assert second.entry is not None
    assert [one.id for one in found.right.entries] == [second.entry.id, second.answer]
    assert list(found.right.context) == [second.entry.id, second.answer]
    (value,) = found.values
    assert (value.namespace, value.left, value.right) == ("test.plan", 1, 2)
    assert [(one.left, one.right) for one in found.lists] == [([], [element])]
    assert (found.left.usage.reports, found.right.usage.reports) == (1, 2)
    same = await difference(engine.storage.inner, past, past)
    assert same.is_none
    turned = await difference(engine.storage.inner, await now(engine, root.id), past)
    assert (turned.left.entries, turned.right.entries) == (found.right.entries, [])


@pytest.mark.spec("US-07")
async def test_two_forks_are_compared_from_where_they_part(engine: Engine) -> None:
    root = await engine.root(lambda _: say("ok", usage=USED))
    await root.set_value(PLAN, "shared")
    await root.prompt("shared")
    middle = await root.fork()
    await middle.prompt("in both")
    left, right = await middle.fork(), await middle.fork()
    parted = (await left.state()).parent
    assert parted is not UNSET
    await middle.prompt("in none")
    await left.set_value(PLAN, "left")
    await right.delete_value(PLAN)
    await left.prompt("left")
    await right.prompt("right")
    await right.reset_context()

    found = await difference(
        engine.storage.inner, await now(engine, left.id), await now(engine, right.id)
    )
    assert found.parted == parted.as_of
    for side, conv in ((found.left, left), (found.right, right)):
        assert {one.conv_id for one in side.entries} == {conv.id}
        assert len(side.entries) == 2
        # What was spent before a fork stays with the conversation that spent it (US-07).
        assert side.usage.reports == 1
    assert len(found.left.context) == 6
    assert list(found.right.context) == []
    (value,) = found.values
    assert (value.left, value.right) == ("left", UNSET)
    totals = [await engine.harness.usage_totals(one.id) for one in (root, middle, left, right)]
    assert [one.reports for one in totals] == [1, 2, 1, 1]
    assert (await engine.harness.usage_totals()).reports == 5
    # A conversation beside its own fork: all that either has since.
    beside = await difference(
        engine.storage.inner, await now(engine, middle.id), await now(engine, left.id)
    )
    assert [len(beside.left.entries), len(beside.right.entries)] == [2, 2]


async def test_what_is_not_there_is_refused(engine: Engine) -> None:
    root = await engine.root()
    here = await now(engine, root.id)
    for wrong, code in (
        (Moment(conversation=Seq(99), as_of=here.as_of), "unknown_target"),
        (Moment(conversation=root.id, as_of=Seq(0)), "unknown_target"),
        (Moment(conversation=root.id, as_of=Seq(here.as_of - 1)), "invariant"),
    ):
        with pytest.raises(Rejected) as caught:
            await difference(engine.storage.inner, here, wrong)
        assert caught.value.code == code


ran = writes(InsertEntry, kind="tool_result", call_index=0)


@pytest.mark.spec("CM-24", "FK-10")
async def test_effects_are_the_calls_that_ran_after_the_point(engine: Engine) -> None:
    gate = Gate()
    tools = [Probe("before"), Probe("ran"), Probe("slow", gate=gate), Probe("denied")]
    script = [
        say(call("before", {"n": 1})),
        say("done"),
        say(call("ran", {"n": 2}), call("unknown"), call("slow", {"n": 3})),
    ]
    root = await engine.root(script, tools=tools)
    await root.prompt("one")
    boundary = (await root.state()).commit_end
    accepted = await root.accept("two")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    # Two calls have their result beside the one that runs: one ran, one was unknown.
    await engine.storage.until(writes(InsertEntry, kind="tool_result", call_index=1))
    await engine.storage.until(lambda one: one.last_seq > boundary and ran(one))

    async def found(conv_id: Seq, as_of: Seq) -> list[tuple[str, object, str]]:
        effects = await effects_after(engine.storage.inner, conv_id, as_of)
        return [(one.tool, one.args, one.outcome) for one in effects]

    running = [("ran", {"n": 2}, "finished"), ("slow", {"n": 3}, "running")]
    assert await found(root.id, boundary) == running
    back = await root.rewind(at=accepted.input_id)
    await driving
    ended = [("ran", {"n": 2}, "finished"), ("slow", {"n": 3}, "interrupted")]
    assert await found(root.id, boundary) == ended
    assert await found(root.id, Seq(0)) == [("before", {"n": 1}, "finished"), *ended]
    # The fork's own history holds only the first call.
    assert await found(back.id, Seq(0)) == [("before", {"n": 1}, "finished")]
    with pytest.raises(Rejected):
        await found(Seq(999), boundary)
