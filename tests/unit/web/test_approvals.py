"""Approvals over HTTP: what is shown runs, decided once, by the token's subject (WB-13)."""

import json
from typing import Any

import pytest

from perdure.providers.script import call, say
from tests.engine import Probe
from tests.unit.web.site import OTHER_TOKEN, Site, gathered

BIG = 9007199254740993
AS_ADA = {"authorization": f"Bearer {OTHER_TOKEN}"}


async def held(site: Site, *amounts: int, name: str = "paris") -> tuple[str, Probe, list[int]]:
    """Make a session whose calls wait for a person; answers path, tool and approvals."""
    probe = Probe("pay", approval="ask")
    site.script = [say(*(call("pay", {"n": one}) for one in amounts)), say("done"), say("more")]
    site.options = {"tools": [probe]}
    path = await site.session(name)
    await site.ask("POST", f"{path}/inputs", {"content": "pay"})
    ended = await site.ask("POST", f"{path}/drive?wait=20")
    assert ended.json["outcome"] == "suspended"
    assert [wait["kind"] for wait in ended.json["waitingFor"]] == ["decision"] * len(amounts)
    page = (await site.ask("GET", f"{path}/approvals")).json["approvals"]
    return path, probe, [one["id"] for one in page]


@pytest.mark.spec("WB-13", "WB-14", "AQ-05", "AQ-06", "BB-39")
async def test_what_is_shown_is_what_runs_and_who_decided_comes_with_the_token(site: Site) -> None:
    path, probe, [approval] = await held(site, BIG)
    [shown] = (await site.ask("GET", f"{path}/approvals")).json["approvals"]
    assert (shown["tool"], shown["argsText"], shown["status"]) == (
        "pay",
        f'{{"n":{BIG}}}',
        "waiting",
    )
    assert shown["path"] == [1]
    place = f"{path}/approvals/{approval}/decision"
    forged = await site.ask("POST", place, {"decision": "grant", "by": "http:eve"})
    assert (forged.status, forged.code) == (400, "invariant")
    body = {"decision": "grant", "details": {"why": "n", "ref": BIG}}
    answer = await site.ask("POST", place, body, headers=AS_ADA)
    assert (answer.json["status"], answer.json["applied"]) == ("granted", True)
    assert answer.json["decision"]["by"] == "http:ada"
    assert answer.json["decision"]["detailsText"] == f'{{"ref":{BIG},"why":"n"}}'
    await site.ask("POST", f"{path}/drive?wait=20")
    assert [json.dumps(one, separators=(",", ":")) for one in probe.runs] == [shown["argsText"]]
    [again] = (await site.ask("GET", f"{path}/approvals?status=all")).json["approvals"]
    assert again["decision"]["by"] == "http:ada"
    assert (await site.ask("GET", f"{path}/approvals")).json["approvals"] == []


@pytest.mark.spec("WB-13", "WB-12")
async def test_the_first_decision_stands_and_every_later_one_is_told_it(site: Site) -> None:
    path, probe, [first, second] = await held(site, 10, 10)
    place = f"{path}/approvals/{first}/decision"
    await site.restart()
    bodies: list[dict[str, Any]] = [
        {"decision": "grant", "drive": False},
        {"decision": "deny", "drive": False},
    ]
    answers = await gathered(*(site.ask("POST", place, bodies[n % 2]) for n in range(20)))
    assert {one.status for one in answers} == {200}
    assert [one.json["applied"] for one in answers].count(True) == 1
    assert len({json.dumps(one.json["decision"]) for one in answers}) == 1
    applied = next(one.json for one in answers if one.json["applied"])
    await site.restart()
    late = await gathered(*(site.ask("POST", place, bodies[n % 2]) for n in range(4)))
    assert {one.body for one in late} == {late[0].body}
    assert late[0].json == {**applied, "applied": False}
    denied = await site.ask(
        "POST",
        f"{path}/approvals/{second}/decision",
        {"decision": "deny", "details": {"text": "no"}},
    )
    assert (denied.json["status"], denied.json["applied"]) == ("denied", True)
    await site.ask("POST", f"{path}/drive?wait=20")
    assert len(probe.runs) <= 1
    entries = (await site.ask("GET", f"{path}/conversations/root/entries")).json["entries"]
    outcomes = sorted(
        entry["meta"]["outcome"] for entry in entries if entry["kind"] == "tool_result"
    )
    granted = "finished" if applied["status"] == "granted" else "denied"
    assert outcomes == ["denied", granted]


@pytest.mark.spec("WB-13")
async def test_what_is_no_approval_cannot_be_decided(site: Site) -> None:
    path, _, [approval] = await held(site, 1)
    for task, status, code in ((999, 404, "not_found"), (approval - 1, 404, None)):
        answer = await site.ask("POST", f"{path}/approvals/{task}/decision", {"decision": "grant"})
        assert answer.status == status
        assert code in (None, answer.code)
    bad = await site.ask("POST", f"{path}/approvals/{approval}/decision", {"decision": "maybe"})
    assert bad.json["error"]["details"] == {"path": "$.decision"}


@pytest.mark.spec("WB-13")
async def test_what_waits_anywhere_is_listed_with_its_session(site: Site) -> None:
    first, _, [one] = await held(site, 1, name="b")
    await site.restart()
    second, _, others = await held(site, 2, 3, name="a")
    await site.session("idle")
    page = (await site.ask("GET", "/v1/approvals")).json
    found = [(one["sessionName"], one["id"], one["session"]) for one in page["approvals"]]
    assert found == [
        *(("a", other, second.rpartition("/")[2]) for other in others),
        ("b", one, first.rpartition("/")[2]),
    ]
    assert page["next"] is None
    seen: list[Any] = []
    after = ""
    while after is not None:
        page = (await site.ask("GET", f"/v1/approvals?limit=1{after}")).json
        seen += page["approvals"]
        after = None if page["next"] is None else f"&after={page['next']}"
    assert [(one["sessionName"], one["id"]) for one in seen] == [one[:2] for one in found]
    await site.ask("POST", f"{second}/approvals/{others[0]}/decision", {"decision": "deny"})
    left = (await site.ask("GET", "/v1/approvals")).json["approvals"]
    assert [one["id"] for one in left] == [others[1], one]
