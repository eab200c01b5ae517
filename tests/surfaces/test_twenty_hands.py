"""Twenty hands on three approvals: terminals and HTTP decide at once, and one decision counts.

One reply pays 10, 99 and 10, and every call waits for a person. The server is killed before they
decide. `pay` writes what it was started with, one line each time: the effect counter.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.surfaces.desk import Desk, Running
from tests.surfaces.served import Server, at_once, serving_again

PAY = """#!/bin/sh
printf '%s %s %s\\n' "$0" "$1" "$2" >> paid
"""
COMMANDS = ("./pay 10 €", "./pay 99 €", "./pay 10 €")

TERMINALS = 3
HANDS = 20


VERDICTS = ("grant", "deny")
ENDS = {
    "granted": {"finished", "notStarted", "interrupted"},
    "denied": {"denied"},
    "cancelled": {"notStarted"},
}
"""How a call may end, by what became of its question; what is granted may still be aborted."""


class Told(NamedTuple):
    """What somebody who decided was told."""

    status: str
    applied: bool
    decision: Any


class Table:
    """A session with three approvals, its server, and everybody who decides."""

    def __init__(self, desk: Desk, server: Server) -> None:
        self.desk = desk
        self.server = server
        session = server.ask("POST", "/v1/sessions", {"name": "a"})[1]["id"]
        self.path = f"/v1/sessions/{session}"
        self.post("inputs", {"content": "pay"})
        self.drive("suspended")
        self.shown = self.approvals("waiting")
        self.ids: list[int] = [one["id"] for one in self.shown]
        assert [json.loads(one["argsText"]) for one in self.shown] == [
            {"command": text} for text in COMMANDS
        ]

    def post(self, path: str, body: object) -> Any:
        status, found = self.server.ask("POST", f"{self.path}/{path}", body)
        assert status in (200, 202), found
        return found

    def drive(self, *outcomes: str) -> None:
        """Let all go on that can."""
        assert self.post("drive?wait=20", {})["outcome"] in outcomes

    def approvals(self, status: str = "all") -> list[dict[str, Any]]:
        page = self.server.get(f"{self.path}/approvals?status={status}")
        found: list[dict[str, Any]] = page["approvals"]
        return found

    def commits(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.get(f"{self.path}/commits?limit=1000")["commits"]
        return found

    def paid(self) -> list[str]:
        """Answer what ran, as the program saw it."""
        file = self.desk.folder / "paid"
        return file.read_text().splitlines() if file.exists() else []

    def outcomes(self) -> list[str]:
        """Answer how the calls ended, in call order."""
        page = self.server.get(f"{self.path}/conversations/root/entries?limit=1000")
        found = [one for one in page["entries"] if one["kind"] == "tool_result"]
        return [one["meta"]["outcome"] for one in sorted(found, key=lambda one: one["callIndex"])]

    def abort(self) -> None:
        self.post("abort", {})

    def by_http(self, approval: int, verdict: str) -> Told:
        """Decide over HTTP; again, while a terminal has the session open."""
        path = f"{self.path}/approvals/{approval}/decision"
        while True:
            status, found = self.server.ask("POST", path, {"decision": verdict})
            if status == 200:
                return Told(found["status"], found["applied"], plainly(found["decision"]))
            assert (status, found["error"]["retry"]) == (503, "later"), found

    def by_terminal(self, approval: int, verdict: str) -> Running:
        """Start a process that decides."""
        word = {"grant": "approve", "deny": "deny"}[verdict]
        return self.desk.start(word, str(approval), "-s", "a", "--json")

    def decide(self, approvals: list[int], *, terminals_first: bool = False) -> list[list[Told]]:
        """Let twenty decide each approval, half of them each way; answers what each was told."""
        hands = [(one, VERDICTS[n % 2]) for n in range(HANDS) for one in approvals]
        by_terminal, by_http = (
            hands[: TERMINALS * len(approvals)],
            hands[TERMINALS * len(approvals) :],
        )
        running = [self.by_terminal(*hand) for hand in by_terminal]
        if terminals_first:
            running[0].until("\n", "out")
        told = at_once(*[partial(self.by_http, *hand) for hand in by_http])
        told = [*(told_to(one) for one in running), *told]
        return [told[at :: len(approvals)] for at in range(len(approvals))]


def told_to(running: Running) -> Told:
    """Read what a process that decided was told."""
    document = running.end().document
    assert (document["exit_code"], document["outcome"]) == (0, "done")
    data = document["data"]
    return Told(data["status"], data["applied"], plainly(data["decision"]))


def plainly(decision: Any) -> Any:
    """Answer a decision as one text, whatever surface it came over."""
    return (
        None if decision is None else (decision["decision"], decision["by"], decision["timestamp"])
    )


def check_one_decision(told: list[Told]) -> None:
    """One of twenty decided, and everybody was told the same."""
    assert len(told) == HANDS
    assert sum(one.applied for one in told) == 1
    ((verdict, by, _),) = {one.decision for one in told}
    assert {one.status for one in told} == {{"grant": "granted", "deny": "denied"}[verdict]}
    assert by == "http:ada" or by.startswith("cli:")


def check_end(table: Table) -> None:
    """Every question was settled once, and what ran is what was granted, as it was shown."""
    approvals = table.approvals()
    assert [(one["id"], one["argsText"]) for one in approvals] == [
        (one["id"], one["argsText"]) for one in table.shown
    ]
    settled = [
        write["change"]["id"]
        for commit in table.commits()
        for write in commit["writes"]
        if write["change"]["k"] == "settle"
    ]
    assert [settled.count(one) for one in table.ids] == [1, 1, 1]
    statuses = [one["status"] for one in approvals]
    outcomes = table.outcomes()
    for status, outcome in zip(statuses, outcomes, strict=True):
        assert outcome in ENDS[status]
    for command in set(COMMANDS):
        ends = [outcomes[n] for n, text in enumerate(COMMANDS) if text == command]
        ran = ends.count("finished")
        assert ran <= table.paid().count(command) <= ran + ends.count("interrupted")
    assert set(table.paid()) <= set(COMMANDS)


def check_repeat(table: Table, before: list[list[Told]]) -> None:
    """Everybody decides and aborts once more, at the next server: nothing changes."""
    table.server.restart()
    stands, commits, paid = table.approvals(), table.commits(), table.paid()
    told = table.decide(table.ids)
    table.abort()
    assert not any(one.applied for many in told for one in many)
    for many, earlier in zip(told, before, strict=True):
        assert {one.decision for one in many} == {one.decision for one in earlier}
    table.drive("idle")
    assert (table.approvals(), table.commits(), table.paid()) == (stands, commits, paid)


@pytest.fixture
def table(desk: Desk) -> Iterator[Table]:
    pay = desk.folder / "pay"
    pay.write_text(PAY)
    pay.chmod(0o755)
    calls = [{"name": "shell", "args": {"command": text}} for text in COMMANDS]
    model = desk.script({"when": "pay", "calls": calls}, {"text": "Done.", "uses": 0})
    with serving_again(desk, "-m", model) as server:
        table = Table(desk, server)
        server.restart()
        assert table.approvals("waiting") == table.shown
        listed = desk.run("approve", "-s", "a", "--json").document["data"]["approvals"]
        assert [(one["id"], one["arguments"]) for one in listed] == [
            (one["id"], one["argsText"]) for one in table.shown
        ]
        yield table


@pytest.mark.spec("BB-19", "AQ-05", "AQ-06", "AP-06", "WB-13")
@pytest.mark.parametrize(
    ("terminals_first", "abort_first"), [(False, False), (True, True)], ids=["at once", "in turn"]
)
def test_of_twenty_decisions_on_each_one_counts(
    table: Table, terminals_first: bool, abort_first: bool
) -> None:
    first, second, third = table.ids
    outer = table.decide([first, third], terminals_first=terminals_first)
    for told in outer:
        check_one_decision(told)
    table.drive("suspended")
    grants = [one for one in outer if one[0].status == "granted"]
    assert table.paid() == [COMMANDS[0]] * len(grants)

    race: list[Callable[[], Any]] = [
        table.abort,
        *[partial(table.by_http, second, "deny")] * HANDS,
    ]
    if abort_first:
        race.pop(0)()
    inner: list[Told] = at_once(*race)[-HANDS:]
    table.drive("idle")
    stands = table.approvals()[1]
    assert stands["status"] in (("cancelled",) if abort_first else ("denied", "cancelled"))
    assert sum(one.applied for one in inner) == (stands["status"] == "denied")
    assert {one.decision for one in inner} == {plainly(stands["decision"])}
    assert len(table.paid()) == len(grants), "what was not granted did not run"
    check_end(table)
    check_repeat(table, [outer[0], inner, outer[1]])


@pytest.mark.spec("BB-19", "AP-06", "AP-07", "AP-08")
def test_an_abort_amid_all_decisions_leaves_each_question_one_end(table: Table) -> None:
    with table.server.watching(f"{table.path}/events") as events:
        for _ in range(3):
            table.drive("suspended")
        hands = [
            partial(table.by_http, one, VERDICTS[n % 2]) for n in range(HANDS) for one in table.ids
        ]
        race: list[Callable[[], Any]] = [*hands[:HANDS], table.abort, *hands[HANDS:]]
        told: list[Told] = [one for one in at_once(*race) if one is not None]
        table.drive("idle")
        announced: list[int] = []
        for event in events:
            if event.json["type"] == "quiescent":
                break
            if event.json.get("kind") == "approval":
                announced.append(event.json["taskId"])
    assert sorted(announced) == table.ids, "each is announced once after the restart"
    each = [told[at :: len(table.ids)] for at in range(len(table.ids))]
    for approval, words in zip(table.approvals(), each, strict=True):
        assert {one.decision for one in words} == {plainly(approval["decision"])}
        assert sum(one.applied for one in words) == (approval["decision"] is not None)
    check_end(table)
    check_repeat(table, each)
