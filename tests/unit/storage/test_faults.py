"""The fault model above the port, and the crash loop it is for."""

import asyncio
from pathlib import Path

import pytest

from perdure.errors import Faulted
from perdure.ports import Sessions, Storage
from perdure.records.seqs import Seq
from perdure.records.writes import RetireScope, SettleTask
from perdure.storage.memory import MemorySessions
from perdure.testing.faulty_storage import Fault, FaultPlan, FaultySessions
from perdure.testing.manual_clock import ManualClock
from perdure.testing.storage_lab import Batch, CountedRandomness, journal
from tests.unit.storage.stores import NAME, container, main


@pytest.fixture(params=["memory", "sqlite"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Sessions:
    if request.param == "memory":
        return MemorySessions(clock=ManualClock(), randomness=CountedRandomness())
    return container(tmp_path)


async def story(storage: Storage) -> None:
    """A task runs, keeps scratch, and settles with a result, a successor and its retirement."""
    batch = main(storage)
    conv_id = batch.conversation()
    task_id = batch.task(conv_id)
    await batch.commit(barrier=True)
    working = Batch(storage, 0)
    working.append("frames", "partial", working_scope=str(task_id))
    await working.commit()
    batch = main(storage)
    batch.entry(conv_id, "result")
    batch.append("perdure.usage", {"task": task_id})
    batch.add(SettleTask, task_id=task_id, status="done")
    batch.task(conv_id, "post_tools")
    batch.add(RetireScope, working_scope=str(task_id))
    await batch.commit()


async def states(storage: Storage) -> tuple[int, bool]:
    """Count commits, and say whether the outcome is there: all of it, or none of it."""
    commits = await journal(storage)
    tasks = await storage.tasks([Seq(2), Seq(8)])
    parts = {
        "entry": bool(await storage.entries([Seq(4)])),
        "settled": Seq(2) in tasks and tasks[Seq(2)].status == "done",
        "successor": Seq(8) in tasks,
        "commits": len(commits) == 2,
        "last": storage.last_seq == 9,
    }
    assert len(set(parts.values())) == 1, parts
    return len(commits), parts["entry"]


@pytest.mark.spec("FT-05", "ST-08", "BB-08")
async def test_crash_loop_leaves_every_batch_whole_or_absent(sessions: Sessions) -> None:
    for fault in (Fault.BEFORE, Fault.AFTER):
        for nth in range(1, 5):
            name = f"{fault}-{nth}"
            plan = FaultPlan(nth, fault)
            storage = await FaultySessions(sessions, plan).open(name, create=True)
            if nth > 3:
                await story(storage)
                assert not plan.fired
            else:
                with pytest.raises(Faulted):
                    await story(storage)
                assert plan.fired
            await storage.close()
            again = await sessions.open(name, create=False)
            _, settled = await states(again)
            assert settled == (nth > 3 or (nth == 3 and fault is Fault.AFTER))
            await again.close()
    await sessions.close()


@pytest.mark.spec("FT-03", "ST-08")
async def test_a_faulted_handle_writes_nothing_more(sessions: Sessions) -> None:
    storage = await FaultySessions(sessions, FaultPlan(1)).open(NAME, create=True)
    batch = main(storage)
    batch.set("n", 1)
    for _ in range(3):
        with pytest.raises(Faulted, match="planned fault"):
            await batch.commit()
    assert storage.last_seq == 0
    await storage.close()
    await sessions.close()


async def test_a_lost_reply_keeps_the_caller_waiting_and_the_batch_stored(
    sessions: Sessions,
) -> None:
    storage = await FaultySessions(sessions, FaultPlan(1, Fault.LOST)).open(NAME, create=True)
    batch = main(storage)
    batch.set("n", 1)
    caller = asyncio.ensure_future(batch.commit())
    done, _ = await asyncio.wait([caller], timeout=0.05)
    assert not done
    assert storage.last_seq == 1
    await storage.close()
    with pytest.raises(Faulted):
        await caller
    again = await sessions.open(NAME, create=False)
    assert len(await journal(again)) == 1
    await sessions.close()


async def test_a_plan_may_pick_a_read(sessions: Sessions) -> None:
    plan = FaultPlan(2, reads=True)
    storage = await FaultySessions(sessions, plan).open(NAME, create=True)
    assert await storage.entries([Seq(1)]) == {}
    with pytest.raises(Faulted):
        await storage.tasks([Seq(1)])
    assert await storage.tasks([Seq(1)]) == {}
    await storage.close()
    await sessions.close()
