"""Forks and rewinds over HTTP: one effect a request, answers equal to the byte (WB-10, WB-12)."""

from typing import Any

import pytest

from perdure.testing.scripted_model import call, say
from tests.engine import Gate, Probe
from tests.unit.web.site import Site, gathered


async def prompted(site: Site, path: str, text: str, **query: int) -> Any:
    where = f"?conversation={query['conversation']}" if query else ""
    accepted = await site.ask("POST", f"{path}/inputs{where}", {"content": text})
    return await site.settled(path, accepted.json["inputId"])


@pytest.mark.spec("WB-10", "WB-12", "ID-10")
async def test_a_fork_asked_for_from_four_connections_is_one(site: Site) -> None:
    site.script = [say("one"), say("two"), say("three")]
    path = await site.session()
    first = await prompted(site, path, "hi")
    entry = first["entry"]["id"]
    body = {"at": entry, "label": "again", "request_id": "k"}
    answers = await gathered(*(site.ask("POST", f"{path}/fork", body) for _ in range(4)))
    assert len({(one.status, one.body) for one in answers}) == 1
    made = answers[0].json
    assert answers[0].status == 201
    assert made["parent"]["conv"] == 1
    assert made["parent"]["at"] == entry
    before = await site.seq(path)
    await site.restart()
    again = await gathered(*(site.ask("POST", f"{path}/fork", body) for _ in range(4)))
    assert {one.body for one in again} == {answers[0].body}
    for other, differs in (
        ({**body, "label": "x"}, "content"),
        ({"at": entry, "request_id": "k"}, "content"),
    ):
        answer = await site.ask("POST", f"{path}/fork", other)
        assert (answer.status, answer.code) == (409, "request_conflict")
        assert answer.json["error"]["details"]["differs"] == differs
    other = await site.ask("POST", f"{path}/rewind", {"at": entry, "request_id": "k"})
    assert other.json["error"]["details"]["differs"] == "verb"
    assert await site.seq(path) == before

    fork = made["conversation"]
    state = await site.ask("GET", f"{path}/conversations/{fork}")
    assert state.json["conversation"]["label"] == "again"
    listed = await site.ask("GET", f"{path}/conversations?parent=1")
    assert [one["id"] for one in listed.json["conversations"]] == [fork]
    answered = await prompted(site, path, "other", conversation=fork)
    assert answered["state"] == "answered"
    entries = (await site.ask("GET", f"{path}/conversations/{fork}/entries")).json["entries"]
    assert [one["conv"] for one in entries] == [1, fork, fork]


@pytest.mark.spec("WB-10", "FK-10")
async def test_a_rewind_cancels_and_answers_the_new_conversation(site: Site) -> None:
    gate = Gate()
    site.script = [say("one"), say(call("slow")), say("anew")]
    site.options = {"tools": [Probe("slow", gate=gate)]}
    path = await site.session()
    first = await prompted(site, path, "hi")
    running = await site.ask("POST", f"{path}/inputs", {"content": "go"})
    await gate.reached.wait()
    made = await site.ask("POST", f"{path}/rewind", {"at": first["answer"]})
    assert made.status == 201
    assert (await site.settled(path, running.json["inputId"]))["state"] == "aborted"
    live = await site.ask("GET", f"{path}/conversations/1/tasks?live=true")
    assert live.json["tasks"] == []
    fork = made.json["conversation"]
    assert (await prompted(site, path, "other", conversation=fork))["text"] == "anew"


@pytest.mark.spec("WB-06", "FK-06")
async def test_a_wrong_target_is_refused(memory_site: Site) -> None:
    path = await memory_site.session()
    wrong: list[tuple[str, Any, int, str]] = [
        ("fork", {"at": 999}, 404, "unknown_target"),
        ("fork", {"as_of": 1}, 400, "invariant"),
        ("fork", {"as_of": 0}, 404, "unknown_target"),
        ("fork", {"at": 1, "as_of": 0}, 400, "invariant"),
        ("fork", {"context": "some"}, 400, "invariant"),
        ("rewind", {}, 400, "invariant"),
    ]
    before = await memory_site.seq(path)
    for verb, body, status, code in wrong:
        answer = await memory_site.ask("POST", f"{path}/{verb}", body)
        assert (answer.status, answer.code) == (status, code), body
    absent = await memory_site.ask("POST", f"{path}/fork?conversation=99", {})
    assert (absent.status, absent.code) == (404, "unknown_target")
    assert await memory_site.seq(path) == before
