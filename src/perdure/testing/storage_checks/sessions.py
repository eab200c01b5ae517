"""Checks of containers: names, ids, owners, openings, readers, deletion."""

from perdure.errors import Rejected, StorageBusy
from perdure.ports import Sessions
from perdure.records.seqs import Seq
from perdure.records.sessions import SessionInfo
from perdure.testing.storage_lab import SESSION_NAME, Lab, fails, journal

NAMES = ("A", "a", "x", "x_2", "é", "e\u0301", "con", "..", "a/../../b", "/abs", "\U0001f600", "-")


async def infos(sessions: Sessions) -> dict[str, SessionInfo]:
    """Answer every session's facts by name."""
    return {info.name: info for info in await sessions.page(after=None, limit=1000)}


async def an_absent_session_is_created_only_when_asked(lab: Lab) -> None:
    """SN-05, ST-27: not_found without create, and nothing is left behind."""
    await fails(lab.sessions.open("second", create=False), Rejected, "not_found")
    await fails(lab.sessions.open("second", create=False, read_only=True), Rejected, "not_found")
    await fails(lab.sessions.open("second", create=True, read_only=True), Rejected, "not_found")
    assert list(await infos(lab.sessions)) == [SESSION_NAME]


async def names_are_compared_by_bytes(lab: Lab) -> None:
    """SN-03: each of them is a session of its own, whatever a file system makes of it."""
    for name in NAMES:
        storage = await lab.sessions.open(name, create=True)
        batch = lab.main(storage)
        batch.set("n", name)
        await batch.commit()
        await storage.close()
    await lab.reopen()
    found = await infos(lab.sessions)
    assert list(found) == sorted([SESSION_NAME, *NAMES])
    assert len({info.id for info in found.values()}) == len(NAMES) + 1
    for name in NAMES:
        storage = await lab.sessions.open(name, create=False)
        assert storage.last_seq == 1
        await storage.close()


async def bad_names_are_refused(lab: Lab) -> None:
    """SN-03: 1 to 256 bytes, no control characters, not only blanks."""
    for name in ("", " ", "\u3000", "a\x00", "a\n", "\x7f", "\x85", "a" * 257, "é" * 129, "\ud800"):
        await fails(lab.sessions.open(name, create=True), Rejected, "invariant")
        await fails(lab.sessions.rename(SESSION_NAME, name), Rejected, "invariant")
    storage = await lab.sessions.open("é" * 128, create=True)
    await storage.close()


async def an_id_is_permanent_and_a_name_is_not(lab: Lab) -> None:
    """SN-02: renaming changes the name only; the old one is free at once."""
    await lab.root()
    before, commits = lab.storage.info, await journal(lab.storage)
    assert len(before.id) == 32
    assert set(before.id) <= set("0123456789abcdef")
    await lab.sessions.rename(SESSION_NAME, "renamed")
    assert lab.storage.info.name == "renamed"
    assert lab.storage.info.id == before.id
    batch = lab.main()
    batch.set("n", 1)
    await batch.commit()
    assert (await journal(lab.storage))[:-1] == commits
    fresh = await lab.sessions.open(SESSION_NAME, create=True)
    assert fresh.info.id != before.id
    assert fresh.last_seq == 0
    await fresh.close()
    await fails(lab.sessions.rename("renamed", SESSION_NAME), Rejected, "invariant")
    await fails(lab.sessions.rename("absent", "other"), Rejected, "not_found")
    await lab.sessions.delete(SESSION_NAME)
    await lab.sessions.rename("renamed", SESSION_NAME)
    await lab.reopen()
    assert lab.storage.info.id == before.id


async def a_page_lists_by_name_and_opens_nothing(lab: Lab) -> None:
    """SN-07: id, name, times, last seq, format, owner; after is exclusive."""
    await lab.root()
    for name in ("b", "a", "c"):
        await (await lab.sessions.open(name, create=True)).close()
    page = await lab.sessions.page(after="a", limit=2)
    assert [info.name for info in page] == ["b", "c"]
    found = await infos(lab.sessions)
    assert found["a"].owner is None
    info = found[SESSION_NAME]
    assert info.owner is not None
    assert info.owner.epoch == info.epoch == 1
    assert (info.last_seq, info.last_commit_ms) == (1, lab.storage.info.last_commit_ms)
    assert info.created_ms > 0
    assert info.format == 1
    assert found["a"].epoch == 1
    again = await infos(lab.sessions)
    assert again == found


async def a_second_writer_is_refused(lab: Lab) -> None:
    """ST-30, SN-11: StorageBusy names the holder; the first goes on; closing frees it."""
    await lab.root()
    error = await fails(lab.sessions.open(SESSION_NAME, create=False), StorageBusy)
    assert {"pid", "host", "since", "epoch"} <= set(error.holder)
    assert str(error.holder["pid"]) in str(error)
    batch = lab.main()
    batch.set("n", 1)
    await batch.commit()
    await fails(lab.sessions.delete(SESSION_NAME), StorageBusy)
    await lab.storage.close()
    await lab.storage.close()
    second = await lab.sessions.open(SESSION_NAME, create=False)
    assert second.info.epoch == 2
    await second.close()


async def a_reader_works_beside_the_writer(lab: Lab) -> None:
    """SN-10: it sees commits as they come, takes no epoch, and writes nothing."""
    conv_id = await lab.root()
    reader = await lab.sessions.open(SESSION_NAME, create=False, read_only=True)
    batch = lab.main()
    entry_id = batch.entry(conv_id)
    await batch.commit()
    assert entry_id in await reader.entries([entry_id])
    assert await journal(reader) == await journal(lab.storage)
    assert reader.last_seq == lab.storage.last_seq
    late = lab.main(reader)
    late.writes.clear()
    late.set("n", 1)
    await fails(reader.commit(late.build(), barrier=False), Rejected, "invariant")
    await reader.close()
    assert lab.storage.info.epoch == 1
    assert [one.epoch for one in await lab.storage.openings(limit=9)] == [1]


async def a_session_is_found_by_its_id(lab: Lab) -> None:
    """SN-02, WB-07: addresses hold ids, and an id outlives the name it was made with."""
    session_id = lab.storage.info.id
    assert (await lab.sessions.find(session_id)).name == SESSION_NAME
    await lab.sessions.rename(SESSION_NAME, "renamed")
    assert (await lab.sessions.find(session_id)).name == "renamed"
    for absent in ("renamed", "0" * 31, "f" * 32, ""):
        await fails(lab.sessions.find(absent), Rejected, "not_found")


async def a_request_makes_one_session(lab: Lab) -> None:
    """WB-08, WB-12: a repeat answers the first one; another name, or a deletion, is said."""
    made = await lab.sessions.create("made", request_id="r1")
    assert made.is_new
    assert (made.info.last_seq, made.info.owner) == (0, None)
    await lab.sessions.rename("made", "renamed")
    await lab.reopen()
    again = await lab.sessions.create("made", request_id="r1")
    assert not again.is_new
    assert (again.info.id, again.info.name) == (made.info.id, "renamed")
    await fails(lab.sessions.create("other", request_id="r1"), Rejected, "request_conflict")
    for taken in ("renamed", SESSION_NAME, "", "a\x00"):
        await fails(lab.sessions.create(taken, request_id="r2"), Rejected, "invariant")
    second = await lab.sessions.create("made", request_id="r2")
    assert second.info.id != made.info.id
    assert (await lab.sessions.create("unkeyed")).is_new
    await lab.sessions.delete("renamed")
    await fails(lab.sessions.create("made", request_id="r1"), Rejected, "deleted")
    assert set(await infos(lab.sessions)) == {SESSION_NAME, "made", "unkeyed"}


async def openings_are_kept(lab: Lab) -> None:
    """SN-14: one an epoch, newest first, with times; opening and closing use no seq."""
    await lab.root()
    for _ in range(3):
        await lab.reopen()
    found = await lab.storage.openings(limit=10)
    assert [one.epoch for one in found] == [4, 3, 2, 1]
    assert [one.closed_ms is None for one in found] == [True, False, False, False]
    assert all(one.opened_ms > 0 and one.pid > 0 and one.host for one in found)
    assert [one.epoch for one in await lab.storage.openings(limit=2)] == [4, 3]
    assert lab.storage.last_seq == 1


async def sessions_never_see_each_other(lab: Lab) -> None:
    """ST-28: colliding ids, addresses and scopes in one container stay apart."""
    other = await lab.sessions.open("other", create=True)
    stores = (lab.storage, other)
    for number, storage in enumerate(stores):
        batch = lab.main(storage)
        conv_id = batch.conversation()
        batch.entry(conv_id, f"in {number}")
        batch.set("n", number)
        batch.set("n", number, conv_id=conv_id)
        batch.append("l", number)
        batch.task(conv_id, status=f"status {number}")
        await batch.commit()
    for number, storage in enumerate(stores):
        assert storage.last_seq == 7
        assert (await storage.entries([Seq(2)]))[Seq(2)].payload == {"text": f"in {number}"}
        assert (await storage.tasks([Seq(7)]))[Seq(7)].status == f"status {number}"
        commits = await journal(storage)
        assert len(commits) == 1
    await other.close()
    before = await journal(lab.storage)
    await lab.sessions.delete("other")
    assert await journal(lab.storage) == before


async def a_deleted_session_is_gone(lab: Lab) -> None:
    """SN-08: whole; a second delete is not_found; the name makes a new id."""
    extra = await lab.sessions.open("extra", create=True)
    batch = lab.main(extra)
    conv_id = batch.conversation()
    batch.entry(conv_id)
    await batch.commit()
    old = extra.info.id
    await extra.close()
    await lab.sessions.delete("extra")
    await fails(lab.sessions.delete("extra"), Rejected, "not_found")
    await fails(lab.sessions.open("extra", create=False), Rejected, "not_found")
    assert "extra" not in await infos(lab.sessions)
    again = await lab.sessions.open("extra", create=True)
    assert again.info.id != old
    assert again.last_seq == 0
    assert await again.conversations([conv_id]) == {}
    assert await journal(again) == []
    await again.close()
