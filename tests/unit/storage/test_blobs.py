"""Bytes over 64 KiB: files named by their content, and the very same bytes back."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Raw

from perdure.errors import Faulted, StorageDamaged
from perdure.ports import Storage
from perdure.records.codec import decode_json
from perdure.records.conversations import ParentLink
from perdure.records.seqs import Seq
from perdure.records.writes import InsertEntry, PatchTask, SetValue
from perdure.storage.blobs import BLOB_BYTES_MIN, Blobs
from perdure.testing.storage_lab import journal, raw
from tests.unit.storage.stores import NAME, container, main, opened

IMAGE = bytes(range(256)) * 300
DIGEST = hashlib.sha256(IMAGE).hexdigest()


def image_part(data: bytes = IMAGE) -> dict[str, str]:
    """Answer an image part as a message holds it."""
    return {
        "type": "image",
        "mime": "image/png",
        "sha256": hashlib.sha256(data).hexdigest(),
        "data": base64.b64encode(data).decode(),
    }


def payload(*parts: object) -> Raw:
    """Answer the payload of a message of parts."""
    return raw({"v": 1, "messages": [{"role": "user", "content": list(parts), "timestamp": 1}]})


def blobs_of(folder: Path) -> list[str]:
    """Name the blobs beside a store."""
    return sorted(path.name for path in (folder / "store.db.blobs").rglob("*") if path.is_file())


async def store(storage: Storage, data: Raw) -> Seq:
    """Commit an entry with a payload."""
    batch = main(storage)
    conv_id = batch.conversation()
    entry_id = batch.entry(conv_id, payload_json=data)
    await batch.commit()
    return entry_id


async def payload_of(storage: Storage, entry_id: Seq) -> bytes:
    """Read an entry's payload bytes."""
    entry = (await storage.entries([entry_id]))[entry_id]
    return bytes(cast("Raw", entry.payload_json))


@pytest.mark.spec("BR-14", "FM-04")
async def test_a_large_image_becomes_a_blob_and_reads_the_same(tmp_path: Path) -> None:
    given = payload({"type": "text", "text": "see"}, image_part(), image_part(IMAGE[1:]))
    async with opened(tmp_path) as storage:
        entry_id = await store(storage, given)
        assert await payload_of(storage, entry_id) == bytes(given)
        write = (await journal(storage))[0].writes[1]
        assert bytes(cast("Raw", cast("InsertEntry", write).payload_json)) == bytes(given)
    async with opened(tmp_path, create=False) as storage:
        assert await payload_of(storage, entry_id) == bytes(given)
    assert blobs_of(tmp_path) == sorted([DIGEST, hashlib.sha256(IMAGE[1:]).hexdigest()])
    data = (tmp_path / "store.db").read_bytes()
    assert data.count(b'"blob":true') == 2
    assert base64.b64encode(IMAGE)[:200] not in data


@pytest.mark.spec("FM-04")
async def test_a_small_image_stays_where_it_is(tmp_path: Path) -> None:
    given = payload(image_part(b"x" * BLOB_BYTES_MIN), image_part(IMAGE))
    async with opened(tmp_path) as storage:
        entry_id = await store(storage, given)
        assert await payload_of(storage, entry_id) == bytes(given)
    blobs = blobs_of(tmp_path)
    assert DIGEST in blobs
    assert hashlib.sha256(b"x" * BLOB_BYTES_MIN).hexdigest() not in blobs


ODD: list[Any] = [
    "x" * 100_000,
    {"text": "x" * 100_000, "blob": True, "data": "not an image"},
    [image_part(), {"blob": True}, "x" * 100_000, image_part()],
    {"type": "image", "data": "not base64 " * 10_000},
    {"type": "image", "data": base64.b64encode(IMAGE).decode() + "\n"},
    {"type": "image", "data": base64.b64encode(IMAGE).decode(), "more": [image_part()]},
    {"args": {"data": base64.b64encode(IMAGE).decode()}, "part": image_part()},
    "\U0001f600é\u2028" * 30_000,
]


@pytest.mark.spec("BR-14")
@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
async def test_any_large_value_comes_back_byte_for_byte(tmp_path: Path, value: object) -> None:
    spaced = Raw(json.dumps(value, ensure_ascii=False).encode())
    escaped = Raw(json.dumps(value).replace("/", "\\/").encode())
    async with opened(tmp_path) as storage:
        for data in (raw(value), spaced, escaped):
            batch = main(storage)
            batch.add(SetValue, namespace="n", key="", value_json=data)
            conv_id = batch.conversation()
            entry_id = batch.entry(conv_id, payload_json=data)
            task_id = batch.task(conv_id)
            batch.append("l", None, conv_id=conv_id)
            batch.add(PatchTask, task_id=task_id, state_json=raw({"big": value}))
            await batch.commit()
            assert await payload_of(storage, entry_id) == bytes(data)
            write = cast("SetValue", (await journal(storage))[-1].writes[0])
            assert bytes(write.value_json) == bytes(data)
            task = (await storage.tasks([task_id]))[task_id]
            assert task.state["big"] == decode_json(data)


@pytest.mark.spec("BR-14")
async def test_equal_content_is_one_file_over_all_sessions(tmp_path: Path) -> None:
    sessions = container(tmp_path)
    for name in ("a", "b"):
        storage = await sessions.open(name, create=True)
        entry_id = await store(storage, payload(image_part()))
        for _ in range(50):
            batch = main(storage)
            link = ParentLink(conv_id=Seq(1), as_of=storage.last_seq, inherit_values=True)
            conv_id = batch.conversation(parent=link, context=(entry_id,))
            batch.entry(conv_id, payload_json=payload(image_part()))
            await batch.commit()
    await sessions.close()
    assert blobs_of(tmp_path) == [DIGEST]
    assert (tmp_path / "store.db").stat().st_size < 2 * len(IMAGE) * 2


@pytest.mark.spec("BR-14")
async def test_a_missing_or_altered_blob_is_named(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry_id = await store(storage, payload(image_part()))
        other = await store(storage, payload({"type": "text", "text": "fine"}))
        blob = tmp_path / "store.db.blobs" / DIGEST[:2] / DIGEST
        whole = blob.read_bytes()
        for damage in (whole[:-1], whole[:-1] + b"x", b""):
            blob.write_bytes(damage)
            with pytest.raises(StorageDamaged) as caught:
                await storage.entries([entry_id])
            assert DIGEST in str(caught.value)
            assert f"write {entry_id}" in str(caught.value)
        blob.unlink()
        with pytest.raises(StorageDamaged, match="missing"):
            await storage.entries([entry_id])
        assert list(await storage.entries([other])) == [other]


async def test_a_blob_that_cannot_be_written_faults_its_own_session_only(tmp_path: Path) -> None:
    sessions = container(tmp_path)
    storage = await sessions.open(NAME, create=True)
    other = await sessions.open("other", create=True)
    (tmp_path / "store.db.blobs").write_text("in the way")
    with pytest.raises(Faulted):
        await store(storage, payload(image_part()))
    await store(other, payload({"type": "text", "text": "fine"}))
    (tmp_path / "store.db.blobs").unlink()
    await storage.close()
    again = await sessions.open(NAME, create=False)
    assert await journal(again) == []
    await sessions.close()


def test_a_blob_is_written_under_another_name_first(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", sync=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / DIGEST[:2]).mkdir()
    (tmp_path / "blobs" / DIGEST[:2] / f"{DIGEST}.7.new").write_bytes(b"half")
    assert blobs.put(IMAGE) == DIGEST
    assert blobs.get(DIGEST) == IMAGE
    path = tmp_path / "blobs" / DIGEST[:2] / DIGEST
    path.write_bytes(b"short")
    assert blobs.put(IMAGE) == DIGEST
    assert blobs.get(DIGEST) == IMAGE


@pytest.mark.spec("BR-12")
async def test_large_payloads_take_little_more_than_their_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        for number in range(8):
            await store(storage, raw({"text": f"{number}" * 2**20}))
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size <= 1.1 * 8 * 2**20
