"""Usage: with its attempt's outcome, once, for ever; what nobody reported is unknown (US)."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from perdure.errors import Rejected
from perdure.ports import ToolContext
from perdure.providers.script import call, say
from perdure.records.addresses import USAGE
from perdure.records.messages import Cost, Usage
from perdure.records.seqs import SEQ_MAX
from perdure.records.sessions import ListPage
from perdure.records.settings import RetryPolicy
from perdure.records.usage import TokenSum
from perdure.records.writes import AppendList, PatchTask, SettleTask
from tests.engine import Engine, Gate, Probe
from tests.unit.drive.chores import new_conversation
from tests.unit.kinds.turns import (
    USED,
    advance_until,
    failing,
    generations,
    outcomes,
    usage_of,
)


@pytest.mark.spec("US-01", "US-02", "IV-22")
async def test_every_report_is_in_the_commit_of_its_outcome(engine: Engine) -> None:
    root = await engine.root(
        [
            failing("server", usage=USED),
            say(call("t"), usage=USED),
            say("end", usage=USED),
            failing("auth", usage=USED),
        ],
        tools=[Probe("t")],
    )
    await advance_until(engine, engine.begin(root.prompt("hi")))
    await root.prompt("again")
    commits = [
        commit
        for commit in await engine.commits()
        if any(isinstance(w, AppendList) and w.namespace == USAGE.namespace for w in commit.writes)
    ]
    moves = [
        [w.status for w in commit.writes if isinstance(w, PatchTask | SettleTask)]
        for commit in commits
    ]
    assert moves == [["retry_wait"], ["done"], ["done"], ["failed"]]
    records = await usage_of(engine)
    first = (await generations(root))[0].id
    assert [(one.task == first, one.attempt) for one in records] == [
        (True, 1),
        (True, 2),
        (False, 1),
        (False, 1),
    ]
    assert {one.kind for one in records} == {"report"}


@pytest.mark.spec("US-04", "US-10")
async def test_an_attempt_without_a_report_records_nothing_and_is_counted(engine: Engine) -> None:
    root = await engine.root([say("one"), say("two", usage=USED), failing("auth")])
    for text in ("a", "b", "c"):
        await root.prompt(text)
    assert len(await usage_of(engine)) == 1
    totals = await engine.harness.usage_totals()
    assert (totals.reports, totals.unknown_attempts) == (1, 2)
    assert (totals.input.tokens, totals.output.tokens) == (100, 20)
    assert (totals.reasoning.tokens, totals.reasoning.unknown_reports) == (0, 1)
    assert totals.costs == {}
    assert totals.unknown_costs == 1
    assert await engine.harness.usage_totals(root.id) == totals


WRONG = Usage(
    input=-7,
    output=cast("int", 1.5),
    reasoning=3,
    cost=Cost(amount="-1", currency="USD", prices=""),
)
MOST = Usage(input=SEQ_MAX, output=SEQ_MAX, cache_read=SEQ_MAX)


@pytest.mark.spec("US-04", "FM-08")
@pytest.mark.parametrize(
    ("told", "stored"),
    [
        (WRONG, [(None, None, None, None, 3, None)]),
        (MOST, [(SEQ_MAX, SEQ_MAX, SEQ_MAX, None, None, None)]),
        ({"input": 7}, []),
    ],
)
async def test_a_report_that_cannot_be_is_unknown_and_fails_nothing(
    engine: Engine, told: Any, stored: list[Any]
) -> None:
    async def body(args: Mapping[str, Any], ctx: ToolContext) -> None:
        ctx.out.write("done")
        ctx.out.usage(told)

    root = await engine.root(
        [say(call("t"), usage=told), say("end", usage=told), failing("auth", usage=told)],
        tools=[Probe("t", body=body)],
    )
    assert (await root.prompt("hi")).state == "answered"
    assert (await root.prompt("again")).state == "failed"
    records = [
        (one.input, one.output, one.cache_read, one.cache_write, one.reasoning, one.cost)
        for one in await usage_of(engine)
    ]
    assert records == stored * 4
    totals = await engine.harness.usage_totals()
    unknown = sum(record[0] is None for record in records)
    assert totals.input == TokenSum(tokens=4 * (told is MOST) * SEQ_MAX, unknown_reports=unknown)


@pytest.mark.spec("US-05")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_repeated_outcome_adds_no_second_record(engine: Engine, when: str) -> None:
    root = await engine.root([say("one", usage=USED)])
    await root.accept("hi")
    held = engine.storage.hold(
        lambda commit: any(isinstance(w, SettleTask) for w in commit.writes),
        when="before" if when == "before" else "after",
    )
    engine.begin(root.drive())
    await held.reached.wait()
    await engine.kill()
    root = await engine.root([say("one", usage=USED)], settings={"retry": RetryPolicy()})
    await advance_until(engine, engine.begin(root.drive()))
    records = await usage_of(engine)
    assert [one.attempt for one in records] == ([2] if when == "before" else [1])


@pytest.mark.spec("US-05", "US-08")
async def test_a_stale_outcome_after_an_abort_adds_none(engine: Engine) -> None:
    gate = Gate()
    root = await engine.root([say("x", "y", gates={4: gate}, usage_early=USED, usage=USED)])
    await root.accept("hi")
    driving = engine.begin(root.drive())
    await gate.reached.wait()
    await root.abort()
    gate.open()
    await driving
    assert len(await usage_of(engine)) == 1
    await engine.close()
    await engine.open()
    assert len(await usage_of(engine)) == 1, "settled and retired, the record stays"


@pytest.mark.spec("US-06")
async def test_usage_is_a_list_that_is_paged_and_not_deleted(engine: Engine) -> None:
    root = await engine.root([say(str(n), usage=USED) for n in range(5)])
    for n in range(5):
        await root.prompt(str(n))
    first = await engine.harness.read_list(USAGE, ListPage(limit=2))
    second = await engine.harness.read_list(USAGE, ListPage(limit=2, after=first[-1].seq))
    newest = await engine.harness.read_list(USAGE, ListPage(limit=1, order="desc"))
    assert len({element.seq for element in (*first, *second, *newest)}) == 5
    with pytest.raises(Rejected):
        await engine.harness.command(lambda tx: tx.delete_list(USAGE))
    with pytest.raises(Rejected):
        await engine.harness.append_list(USAGE, {"v": 1})


@pytest.mark.spec("US-09")
async def test_task_patches_repeat_no_usage(engine: Engine) -> None:
    root = await engine.root([say(call("t"), usage=USED), say("end")], tools=[Probe("t")])
    await root.prompt("hi")
    assert await outcomes(root) == ["finished"]
    for commit in await engine.commits():
        for write in commit.writes:
            if isinstance(write, PatchTask | SettleTask) and write.state_json:
                assert b"cacheRead" not in bytes(write.state_json)


@pytest.mark.spec("US-10")
async def test_totals_of_one_conversation_leave_the_others_out(engine: Engine) -> None:
    root = await engine.root([say("one", usage=USED), say("two", usage=USED), say("three")])
    other = await engine.harness.conversation(await new_conversation(engine))
    assert other is not None
    await root.prompt("a")
    await other.prompt("b")
    await other.prompt("c")
    mine = await engine.harness.usage_totals(root.id)
    theirs = await engine.harness.usage_totals(other.id)
    both = await engine.harness.usage_totals()
    assert (mine.reports, mine.unknown_attempts) == (1, 0)
    assert (theirs.reports, theirs.unknown_attempts) == (1, 1)
    assert (both.reports, both.unknown_attempts, both.input.tokens) == (2, 1, 200)
    again = await engine.harness.usage_totals()
    assert again is both, "the same head is summed once"


@pytest.mark.spec("TI-05")
async def test_totals_at_a_boundary_count_what_was_reported_by_then(engine: Engine) -> None:
    root = await engine.root([say("one", usage=USED), say("two"), say("three", usage=USED)])

    for text in ("a", "b", "c"):
        await root.prompt(text)
    seen = [
        await engine.harness.usage_totals(as_of=(await engine.commits())[at].last_seq)
        for at in range(len(await engine.commits()))
    ]
    assert [(one.reports, one.unknown_attempts) for one in seen][-1] == (2, 1)
    assert seen[0].reports == 0
    assert sorted(one.reports for one in seen) == [one.reports for one in seen]
