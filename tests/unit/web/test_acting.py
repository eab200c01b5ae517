"""Sessions made, inputs taken, and everything else that acts (WB-06, WB-08, WB-10 to WB-12)."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from perdure.errors import Faulted
from perdure.testing.scripted_model import call, say
from perdure.web.routes import ROUTES
from tests.engine import Gate, Probe, is_main
from tests.unit.web.site import DOCUMENT, Site, gathered

NAMES = ("A", "a", "..", "a/../../b", "/abs", "con", "é", "e\u0301", "x y?&#%2f", "\U0001f600")


@pytest.mark.spec("WB-07")
async def test_the_document_has_exactly_the_routes_of_the_router(memory_site: Site) -> None:
    paths: list[Any] = memory_site.app._router.routes
    routed = {(method, path.path) for path in paths for method in path.methods - {"HEAD"}}
    documented = {
        (method.upper(), path) for path, ops in DOCUMENT["paths"].items() for method in ops
    }
    assert routed == documented
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    own = {"/health", "/openapi.json"}
    assert all(path.startswith("/v1/") for _, path in documented if path not in own)


@pytest.mark.spec("WB-07")
async def test_the_document_is_served_as_it_is(memory_site: Site) -> None:
    assert (await memory_site.ask("GET", "/openapi.json")).json == json.loads(json.dumps(DOCUMENT))


@pytest.mark.spec("WB-08", "WB-12")
async def test_a_session_is_made_once_for_each_request(site: Site) -> None:
    body = {"name": "paris", "request_id": "k1"}
    first = await site.ask("POST", "/v1/sessions", body)
    assert (first.status, first.json["name"]) == (201, "paris")
    path = f"/v1/sessions/{first.json['id']}"
    assert (await site.ask("PATCH", path, {"name": "rome"})).json["name"] == "rome"
    await site.restart()
    again = await gathered(*(site.ask("POST", "/v1/sessions", body) for _ in range(4)))
    assert {(one.status, one.body) for one in again} == {(200, first.body)}
    other = await site.ask("POST", "/v1/sessions", {"name": "oslo", "request_id": "k1"})
    assert (other.status, other.code) == (409, "request_conflict")
    taken = await site.ask("POST", "/v1/sessions", {"name": "rome"})
    assert (taken.status, taken.code) == (400, "invariant")
    listed = (await site.ask("GET", "/v1/sessions")).json
    assert [(one["name"], one["root"], one["state"]) for one in listed["sessions"]] == [
        ("rome", 1, "idle")
    ]


@pytest.mark.spec("WB-08", "SN-03")
async def test_any_legal_name_is_made_found_and_deleted(site: Site) -> None:
    made = {}
    for name in NAMES:
        made[name] = (await site.session(name)).rpartition("/")[2]
    assert len(set(made.values())) == len(NAMES)
    for name in NAMES:
        found = await site.ask("GET", f"/v1/sessions?name={quoted(name)}")
        assert [one["id"] for one in found.json["sessions"]] == [made[name]]
    absent = await site.ask("GET", "/v1/sessions?name=nobody")
    assert absent.json == {"sessions": [], "next": None}
    for bad in ("", " ", "a\nb", "x" * 257):
        answer = await site.ask("POST", "/v1/sessions", {"name": bad})
        assert (answer.status, answer.code) == (400, "invariant")


def quoted(name: str) -> str:
    return "".join(f"%{byte:02x}" for byte in name.encode())


@pytest.mark.spec("WB-07", "WB-08")
async def test_sessions_come_in_pages(memory_site: Site) -> None:
    for name in "dbca":
        await memory_site.session(name)
    seen: list[str] = []
    after = ""
    while True:
        page = (await memory_site.ask("GET", f"/v1/sessions?limit=2{after}")).json
        seen += [one["name"] for one in page["sessions"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == list("abcd")
    for bad in ("limit=0", "limit=1001", "limit=x", "limt=3", "limit=3&limit=4"):
        answer = await memory_site.ask("GET", f"/v1/sessions?{bad}")
        assert (answer.status, answer.code) == (400, "invariant"), bad


@pytest.mark.spec("WB-08")
async def test_deleting_shows_first_and_needs_confirmation(site: Site) -> None:
    gate = Gate()
    site.script, site.options = [say(call("slow"))], {"tools": [Probe("slow", gate=gate)]}
    path = await site.session()
    await site.ask("POST", f"{path}/inputs", {"content": "hi"})
    await gate.reached.wait()
    shown = (await site.ask("DELETE", path)).json
    assert shown["deleted"] is False
    assert [task["kind"] for task in shown["tasks"]] == ["tool", "post_tools"]
    busy = await site.ask("DELETE", f"{path}?confirm=true")
    assert (busy.status, busy.code, busy.json["error"]["retry"]) == (409, "busy", "later")
    gate.open()
    await site.ask("POST", f"{path}/shutdown")
    await site.ask("POST", f"{path}/drive?wait=20")
    gone = await site.ask("DELETE", f"{path}?confirm=true")
    assert gone.json["deleted"] is True
    for method in ("GET", "DELETE"):
        assert (await site.ask(method, path)).code == "not_found"


@pytest.mark.spec("WB-10", "WB-11")
async def test_an_input_is_driven_and_its_answer_waited_for(site: Site) -> None:
    gate = Gate()
    site.script = [say("It rains.", gates={-1: gate})]
    path = await site.session()
    accepted = await site.ask("POST", f"{path}/inputs", {"content": "Weather?"})
    assert accepted.status == 202
    assert accepted.json == {"inputId": 5, "conversation": 1, "mode": "accept"}
    await gate.reached.wait()
    early = await site.ask("GET", f"{path}/inputs/5?wait=0.01")
    assert (early.json["state"], early.json["final"]) == ("open", False)
    waiting = asyncio.ensure_future(site.ask("GET", f"{path}/inputs/5?wait=30"))
    gate.open()
    late = (await waiting).json
    assert (late["state"], late["text"], late["final"]) == ("answered", "It rains.", True)
    absent = await site.ask("GET", f"{path}/inputs/99")
    assert (absent.status, absent.code) == (404, "not_found")
    for bad in ("wait=61", "wait=-1"):
        assert (await site.ask("GET", f"{path}/inputs/5?{bad}")).status == 400


@pytest.mark.spec("WB-10")
async def test_nothing_starts_unless_it_is_driven(site: Site) -> None:
    site.script = [say("late"), say("later")]
    path = await site.session()
    accepted = await site.ask("POST", f"{path}/inputs", {"content": "hi", "drive": False})
    input_id = accepted.json["inputId"]
    await asyncio.sleep(0)
    tasks = (await site.ask("GET", f"{path}/conversations/root/tasks?live=true")).json["tasks"]
    assert [(task["kind"], task["role"]) for task in tasks] == [("generation", "start")]
    assert site.engine.models.requests == []
    started = await site.ask("POST", f"{path}/drive")
    assert (started.status, started.json) == (202, {"driving": True})
    assert (await site.settled(path, input_id))["text"] == "late"
    ended = await site.ask("POST", f"{path}/drive?wait=5", {"poll_deferred": True})
    assert ended.json == {"outcome": "idle", "waitingFor": [], "nextAt": None}


@pytest.mark.spec("WB-10")
async def test_each_mode_is_its_queue(site: Site) -> None:
    gate = Gate()
    site.script = [say("one", gates={-1: gate}), say("two"), say("three")]
    path = await site.session()
    first = await site.ask("POST", f"{path}/inputs", {"content": "a"})
    await gate.reached.wait()
    ids = {}
    for mode in ("accept", "steer", "followUp", "nextRun", "write"):
        answer = await site.ask("POST", f"{path}/inputs", {"content": mode, "mode": mode})
        ids[mode] = answer.json["inputId"]
    queue = (await site.ask("GET", f"{path}/conversations/root/queue")).json["queue"]
    assert [(one["id"], one["mode"]) for one in queue] == [
        (ids["accept"], "followUp"),
        (ids["steer"], "steer"),
        (ids["followUp"], "followUp"),
        (ids["nextRun"], "nextRun"),
        (ids["write"], "write"),
    ]
    assert queue[1]["messages"][0]["content"] == [{"type": "text", "text": "steer"}]
    for input_id, result in (
        (ids["followUp"], "cancelled"),
        (first.json["inputId"], "already_consumed"),
        (999, "not_found"),
    ):
        answer = await site.ask("POST", f"{path}/queue/{input_id}/cancel")
        assert answer.json == {"result": result}
    gate.open()
    assert (await site.settled(path, ids["accept"]))["state"] == "answered"
    assert (await site.settled(path, ids["followUp"]))["by"] == "cancel"
    unknown = await site.ask("POST", f"{path}/inputs", {"content": "a", "mode": "shout"})
    assert unknown.json["error"]["details"] == {"path": "$.mode"}


@pytest.mark.spec("WB-10")
async def test_an_abort_ends_what_runs_and_a_flush_starts_what_is_left(site: Site) -> None:
    gate = Gate()
    site.script = [say("one", gates={-1: gate}), say("two")]
    path = await site.session()
    first = (await site.ask("POST", f"{path}/inputs", {"content": "a"})).json["inputId"]
    await gate.reached.wait()
    steer = await site.ask("POST", f"{path}/inputs", {"content": "b", "mode": "steer"})
    left = await site.ask("POST", f"{path}/inputs", {"content": "c", "mode": "nextRun"})
    other = await site.ask("POST", f"{path}/abort", {"only_if": 999})
    assert (other.status, other.code, other.json["error"]["retry"]) == (
        409,
        "version_mismatch",
        "reread",
    )
    report = (await site.ask("POST", f"{path}/abort", {"only_if": first})).json
    assert [one["inputId"] for one in report["drained"]] == [steer.json["inputId"]]
    assert len(report["marked"]) == 1
    gate.open()
    assert (await site.settled(path, first))["state"] == "aborted"
    await site.ask("POST", f"{path}/drive?wait=5")
    started = (await site.ask("POST", f"{path}/flush")).json
    assert started["inputs"] == [left.json["inputId"]]
    assert (await site.settled(path, left.json["inputId"]))["text"] == "two"
    await site.ask("POST", f"{path}/drive?wait=5")
    assert (await site.ask("POST", f"{path}/flush")).code == "nothing_to_do"


@pytest.mark.spec("WB-10")
async def test_a_conversation_is_configured_labelled_and_reset(site: Site) -> None:
    site.script = [say("one")]
    path = await site.session()
    first = (await site.ask("POST", f"{path}/inputs", {"content": "a"})).json["inputId"]
    await site.settled(path, first)
    body = {
        "label": "trip",
        "steering_mode": "one-at-a-time",
        "thinking": "high",
        "active_tools": [],
    }
    state = (await site.ask("POST", f"{path}/configure", body)).json["conversation"]
    assert (state["label"], state["steeringMode"]) == ("trip", "one-at-a-time")
    values = f"{path}/conversations/root/values?namespace="
    assert (await site.ask("GET", f"{values}perdure.thinking")).json["values"][0]["value"] == "high"
    assert (await site.ask("GET", f"{values}perdure.active-tools")).json["values"][0]["value"] == []
    label = await site.ask("POST", f"{path}/labels/{first}", {"label": "start"})
    assert label.json == {"entry": first, "label": "start"}
    assert (await site.ask("POST", f"{path}/labels/{first}", {"label": None})).status == 200
    assert (await site.ask("POST", f"{path}/labels/999", {"label": "x"})).code == "not_found"
    wrong = await site.ask("POST", f"{path}/reset", {"expect_prefix_version": 7})
    assert wrong.code == "version_mismatch"
    state = (await site.ask("POST", f"{path}/reset", {"ids": [first]})).json["conversation"]
    assert (state["context"], state["prefixVersion"]) == ([first], 1)


@pytest.mark.spec("WB-12", "ID-10")
@pytest.mark.parametrize("mode", ["accept", "steer", "followUp", "nextRun", "write"])
async def test_a_request_repeated_from_four_connections_has_one_effect(
    site: Site, mode: str
) -> None:
    site.script = [say("one"), say("two")]
    path = await site.session()
    body = {"content": "hi", "mode": mode, "request_id": "k", "drive": False}
    answers = await gathered(*(site.ask("POST", f"{path}/inputs", body) for _ in range(4)))
    assert len({(one.status, one.body) for one in answers}) == 1
    before = await site.seq(path)
    await site.restart()
    again = await gathered(*(site.ask("POST", f"{path}/inputs", body) for _ in range(4)))
    assert {(one.status, one.body) for one in again} == {(202, answers[0].body)}
    others: list[tuple[Mapping[str, Any], str]] = [
        ({**body, "content": "ho"}, "content"),
        ({**body, "mode": "steer" if mode != "steer" else "accept"}, "verb"),
    ]
    for other, differs in others:
        answer = await site.ask("POST", f"{path}/inputs", other)
        assert (answer.status, answer.code) == (409, "request_conflict")
        assert answer.json["error"]["details"]["differs"] == differs
    assert await site.seq(path) == before


CONTENTS: list[tuple[Any, str]] = [
    (7, "$.content"),
    ([], "$"),
    ({"role": "assistant", "content": []}, "$.content"),
    ({"role": "user", "content": [{"type": "text", "txt": "a"}]}, "$.content"),
    ({"role": "user", "content": [{"type": "text", "text": "a", "colour": "red"}]}, "$.content"),
    ([{"role": "user", "content": [{"type": "text", "text": "a"}], "x": 1}], "$.content[0]"),
]


@pytest.mark.spec("WB-05")
@pytest.mark.parametrize(("content", "path"), CONTENTS)
async def test_content_that_is_no_message_is_refused_by_its_path(
    memory_site: Site, content: Any, path: str
) -> None:
    place = await memory_site.session()
    answer = await memory_site.ask("POST", f"{place}/inputs", {"content": content})
    assert (answer.status, answer.code) == (400, "invariant")
    assert answer.json["error"]["details"].get("path", "$") == path


async def test_messages_with_parts_are_taken(memory_site: Site) -> None:
    memory_site.script = [say("seen")]
    path = await memory_site.session()
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    accepted = await memory_site.ask("POST", f"{path}/inputs", {"content": [message, message]})
    result = await memory_site.settled(path, accepted.json["inputId"])
    assert len(result["entry"]["payload"]["messages"]) == 2


@pytest.mark.spec("WB-06")
async def test_errors_have_one_shape_and_say_what_to_do(memory_site: Site) -> None:
    path = await memory_site.session()
    absent = await memory_site.ask("GET", "/v1/nowhere")
    assert (absent.status, absent.code) == (404, "not_found")
    wrong = await memory_site.ask("PUT", path)
    assert (wrong.status, wrong.code) == (405, "method_not_allowed")
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "PATCH", "DELETE"}
    for conv in ("99", "rooot", "-1", "1e3"):
        answer = await memory_site.ask("GET", f"{path}/conversations/{conv}/entries")
        assert (answer.status, answer.code) == (404, "unknown_target")
    answer = await memory_site.ask("POST", f"{path}/abort?conversation=99")
    assert (answer.status, answer.code) == (404, "unknown_target")
    assert (await memory_site.ask("GET", f"/v1/sessions/{'0' * 32}")).code == "not_found"


@pytest.mark.spec("WB-06")
async def test_a_session_that_another_process_owns_is_named(site: Site) -> None:
    owned = await site.engine.sessions.open("theirs", create=True)
    path = f"/v1/sessions/{owned.info.id}"
    answer = await site.ask("POST", f"{path}/inputs", {"content": "hi"})
    assert (answer.status, answer.code) == (503, "storage_busy")
    assert answer.headers["retry-after"] == "2"
    assert answer.json["error"]["details"]["pid"] > 0
    assert (await site.ask("GET", f"{path}/conversations")).status == 200
    await owned.close()


@pytest.mark.spec("WB-06", "WB-19")
async def test_a_faulted_session_says_why_while_others_go_on(site: Site) -> None:
    broken, sound = await site.session("broken"), await site.session("sound")
    await site.restart()
    site.script = [say("fine"), say("fine")]
    await site.ask("POST", f"{broken}/configure", {"label": "x"})
    site.engine.storage.fail(is_main, Faulted("the disk is full"))
    answer = await site.ask("POST", f"{broken}/inputs", {"content": "hi"})
    assert (answer.status, answer.code, answer.json["error"]["retry"]) == (
        503,
        "faulted",
        "same_id",
    )
    assert "retry-after" in answer.headers
    for method, place in (("GET", "/usage"), ("POST", "/abort"), ("GET", "")):
        later = await site.ask(method, broken + place)
        assert (later.status, later.code) == (503, "faulted")
        assert "the disk is full" in later.json["error"]["message"]
    health = await site.ask("GET", "/health", headers={"authorization": None})
    assert health.status == 503
    assert health.json == {"status": "faulted", "sessions": [broken.rpartition("/")[2]]}
    listed = (await site.ask("GET", "/v1/sessions")).json["sessions"]
    assert [(one["name"], one["state"]) for one in listed] == [
        ("broken", "faulted"),
        ("sound", "idle"),
    ]
    accepted = await site.ask("POST", f"{sound}/inputs", {"content": "hi"})
    assert (await site.settled(sound, accepted.json["inputId"]))["state"] == "answered"


@pytest.mark.spec("WB-06")
async def test_a_defect_is_told_by_an_id_and_never_by_its_words(
    memory_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret words")

    monkeypatch.setattr(memory_site.house, "page", broken)
    answer = await memory_site.ask("GET", "/v1/sessions")
    assert (answer.status, answer.code) == (500, "defect")
    [(report, text)] = memory_site.defects
    assert answer.json["error"]["details"] == {"report": report}
    assert "secret words" in text
    assert b"secret" not in answer.body
    assert b"Traceback" not in answer.body


@pytest.mark.spec("WB-22")
async def test_the_access_log_says_the_pattern_and_nothing_that_was_asked(
    memory_site: Site,
) -> None:
    path = await memory_site.session("secret-name")
    await memory_site.ask("GET", f"{path}/conversations/root/values?namespace=secret-space")
    await memory_site.ask("POST", f"{path}/inputs", {"content": "secret words", "drive": False})
    await memory_site.ask("GET", "/v1/secret-path")
    assert [(line.method, line.route, line.status) for line in memory_site.lines] == [
        ("POST", "/v1/sessions", 201),
        ("GET", "/v1/sessions/{session}/conversations/{conv}/values", 200),
        ("POST", "/v1/sessions/{session}/inputs", 202),
        ("GET", "-", 404),
    ]
    assert all(line.bytes > 0 and line.request_id for line in memory_site.lines)
    assert "secret" not in str(memory_site.lines)
    assert path.rpartition("/")[2] not in str(memory_site.lines)
