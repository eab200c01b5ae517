"""RC-15: beginning to watch and a commit: an old base and then the commit, or a base with it."""

import pytest

from perdure.providers.script import say
from perdure.records.watch import WatchBase, WatchCommit
from tests.engine import Engine, is_main
from tests.races.held import after_the_held


@pytest.mark.spec("RC-15", "WT-01")
async def test_a_commit_under_way_is_in_the_base_and_does_not_come_again(engine: Engine) -> None:
    root = await engine.root([say("x")])
    held = engine.storage.hold(is_main)
    accepting = engine.begin(root.accept("hi"))
    await held.reached.wait()
    watch = root.watch()
    await after_the_held(engine, held, watch.__aenter__())
    accepted = await accepting
    base = await anext(watch)
    assert isinstance(base, WatchBase)
    assert [entry.id for entry in base.entries] == [accepted.input_id]
    later = await root.append_message("more")
    event = await anext(watch)
    assert isinstance(event, WatchCommit)
    assert event.first_seq == base.as_of + 1 == later.input_id
    await watch.close()


@pytest.mark.spec("RC-15", "WT-01")
async def test_a_commit_after_the_base_comes_once_and_is_not_in_it(engine: Engine) -> None:
    root = await engine.root([say("x")])
    before = engine.storage.last_seq
    held = engine.storage.hold(is_main)
    async with root.watch() as watch:
        accepting = engine.begin(root.accept("hi"))
        await held.reached.wait()
        held.open()
        accepted = await accepting
        base = await anext(watch)
        assert isinstance(base, WatchBase)
        assert (base.as_of, base.entries, base.tasks) == (before, (), ())
        event = await anext(watch)
        assert isinstance(event, WatchCommit)
        assert event.first_seq == before + 1 <= accepted.input_id <= event.last_seq
