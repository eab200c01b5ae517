"""The lost answer: a request whose answer and server are gone is sent again, and is one request.

Every test loses an answer, kills the server with SIGKILL, starts another one on the same store, and
sends the same bytes five times over each of four connections at once.
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import perdure
from perdure.records.seqs import Seq
from tests.surfaces.desk import Desk
from tests.surfaces.served import Answer, Server, at_once, serving_again

OWN = ("The first answer.", "answered", "The second answer.")
"""Whose exchange the second input has to itself."""

MODES = {
    "accept": OWN,
    "steer": ("The second answer.", "answered", "The second answer."),
    "followUp": OWN,
    "nextRun": OWN,
    "write": ("The second answer.", "placed", ""),
}
"""What becomes of both inputs: the first one's answer, the second one's state and answer.

What steers or is written joins the exchange that runs, whose answer comes after it.
"""

ROUNDS = 2
CONNECTIONS = 4
TIMES = 5

FIRST = "echo a >> effects; echo the end of a"
SECOND = "echo b >> effects; echo > begun; cat gate"
"""Counts itself, says that it runs, and ends when somebody writes into the pipe `gate`."""


class Story:
    """A session whose first input waits for a decision on its call."""

    def __init__(self, desk: Desk, server: Server, words: str = "begin") -> None:
        self.server = server
        session, self.other = with_another_conversation(desk)
        self.path = f"/v1/sessions/{session}"
        self.begun = desk.fifo("begun")
        self._gate = desk.folder / "gate"
        os.mkfifo(self._gate)
        self._effects = desk.folder / "effects"
        self.first = self.give(words)
        (self.approval,) = self.asked()

    def open(self) -> None:
        """Let the second call end; it is there to read."""
        self._gate.write_text("the end of b\n")

    def post(self, path: str, body: object) -> Any:
        status, found = self.server.ask("POST", f"{self.path}/{path}", body)
        assert status in (200, 202), found
        return found

    def give(self, content: str) -> int:
        given: int = self.post("inputs", {"content": content})["inputId"]
        return given

    def asked(self) -> list[int]:
        """Drive until all that can go on has, and answer the approvals that wait."""
        assert self.post("drive?wait=20", {})["outcome"] == "suspended"
        return [one["id"] for one in self.server.get(f"{self.path}/approvals")["approvals"]]

    def grant(self, approval: int) -> None:
        assert self.post(f"approvals/{approval}/decision", {"decision": "grant"})["applied"]

    def state(self, input_id: int) -> str:
        found: str = self.server.get(f"{self.path}/inputs/{input_id}")["state"]
        return found

    def ended(self, input_id: int) -> Any:
        return self.server.get(f"{self.path}/inputs/{input_id}?wait=20")

    def last_seq(self) -> int:
        commits = self.server.get(f"{self.path}/commits?newest=true&limit=1&writes=false")
        found: int = commits["commits"][-1]["lastSeq"]
        return found

    def said(self, kind: str) -> list[str]:
        """Answer the texts of all inputs that were queued (`input`) or placed (`user`)."""
        page = self.server.get(f"{self.path}/conversations/root/entries?limit=1000")
        return [
            message["content"][0]["text"]
            for entry in page["entries"]
            if entry["kind"] == kind
            for message in entry["payload"]["messages"]
        ]

    def effects(self) -> list[str]:
        """Answer which calls ran, each time it did."""
        return self._effects.read_text().split() if self._effects.exists() else []

    def storm(self, request: bytes) -> Answer:
        """Send the same bytes from everywhere; every answer is the same, byte for byte."""
        send = partial(self.server.send, request, TIMES)
        answers = [one for many in at_once(*[send] * CONNECTIONS) for one in many]
        assert len(answers) == CONNECTIONS * TIMES
        assert len(set(answers)) == 1
        return answers[0]

    def refused(self, body: object, differs: str, *, conversation: int | None = None) -> None:
        """Send what the key does not stand for; it changes nothing."""
        before = self.last_seq()
        query = "" if conversation is None else f"?conversation={conversation}"
        (answer,) = self.server.send(self.server.bytes_of(f"{self.path}/inputs{query}", body))
        assert answer.status == 409
        error = answer.json["error"]
        assert (error["code"], error["details"]["differs"]) == ("request_conflict", differs)
        assert self.last_seq() == before


@pytest.fixture
def server(desk: Desk) -> Iterator[Server]:
    model = desk.script(
        {"when": "second", "calls": [shell(SECOND)], "uses": 0},
        {"when": "begin", "calls": [shell(FIRST)], "uses": 0},
        {"when": "the end of b", "text": "The second answer.", "uses": 0},
        {"when": "the end of a", "text": "The first answer.", "uses": 0},
    )
    with serving_again(desk, "-m", model) as server:
        yield server


def shell(command: str) -> dict[str, Any]:
    return {"name": "shell", "args": {"command": command}}


def with_another_conversation(desk: Desk) -> tuple[str, int]:
    """Make a session with a second conversation, which no route makes yet."""
    model = desk.script({"text": "."}, name="unused.json")

    async def make() -> tuple[str, int]:
        made: list[Seq] = []
        async with perdure.open(f"sqlite:{desk.store}", session="a", model=model) as harness:
            await harness.root()
            await harness.command(lambda tx: made.append(tx.insert_conversation()))
            return harness.info.id, made[0]

    return perdure.run(make())


@pytest.mark.spec("WB-12", "ID-03", "ID-06", "ID-08", "ID-10", "BB-06")
@pytest.mark.parametrize("mode", MODES)
def test_a_lost_answer_is_given_again_while_queued_running_and_final(
    desk: Desk, server: Server, mode: str
) -> None:
    story = Story(desk, server)
    body = {"content": "second", "mode": mode, "request_id": "k"}
    request = server.bytes_of(f"{story.path}/inputs", body)
    server.lose(request, answered=True)
    server.restart()
    given = story.storm(request)
    second = given.json["inputId"]
    assert given.status == 202
    assert story.state(second) == "queued"
    refuse_others(story, body)

    story.grant(story.approval)
    if mode == "nextRun":  # waits for the next input that is given to an idle conversation
        assert story.ended(story.first)["state"] == "answered"
        story.give("third")
    (approval,) = story.asked()
    story.grant(approval)
    story.begun()
    assert story.storm(request) == given
    assert story.state(second) == ("placed" if mode == "write" else "open")

    story.open()
    first, own = story.ended(story.first), story.ended(second)
    assert (first["text"], own["state"], own["text"]) == MODES[mode]
    server.restart()
    assert story.storm(request) == given
    refuse_others(story, body)
    assert story.effects() == ["a", "b"]
    assert [story.said(kind).count("second") for kind in ("input", "user")] == [1, 1]


def refuse_others(story: Story, body: dict[str, Any]) -> None:
    """Use the key for other content, by another verb and in another conversation."""
    story.refused({**body, "content": "Second"}, "content")
    story.refused({**body, "mode": "accept" if body["mode"] == "steer" else "steer"}, "verb")
    story.refused(body, "conversation", conversation=story.other)


@pytest.mark.spec("WB-13", "AP-06")
def test_a_lost_decision_is_told_again_and_never_taken_back(desk: Desk, server: Server) -> None:
    story = Story(desk, server, "second")
    place = f"{story.path}/approvals/{story.approval}/decision"
    body = {"decision": "grant", "details": "fine", "drive": False}
    request = server.bytes_of(place, body)
    server.lose(request, answered=True)
    server.restart()
    told = story.storm(request)
    assert (told.status, told.json["status"], told.json["applied"]) == (200, "granted", False)
    assert told.json["decision"]["by"] == "http:ada"
    stands = story.last_seq()
    others: list[dict[str, Any]] = [
        {**body, "decision": "deny"},
        {**body, "details": "no matter"},
    ]

    def contradict() -> None:
        for other in others:
            assert story.storm(server.bytes_of(place, other)) == told

    contradict()
    assert story.last_seq() == stands
    assert not story.effects()

    story.post("drive", {})
    story.begun()
    assert story.storm(request) == told
    contradict()

    story.open()
    assert story.ended(story.first)["text"] == "The second answer."
    server.restart()
    stands = story.last_seq()
    assert story.storm(request) == told
    contradict()
    assert story.last_seq() == stands
    assert story.effects() == ["b"]


@pytest.mark.spec("WB-12", "WB-13", "ID-02", "ID-10")
def test_requests_that_are_cut_off_with_their_server_are_taken_once(
    desk: Desk, server: Server
) -> None:
    story = Story(desk, server)
    decision = server.bytes_of(
        f"{story.path}/approvals/{story.approval}/decision", {"decision": "deny", "drive": False}
    )
    for number in range(ROUNDS):
        requests = {
            f"{mode} {number}": server.bytes_of(
                f"{story.path}/inputs",
                {
                    "content": f"{mode} {number}",
                    "mode": mode,
                    "request_id": f"{mode} {number}",
                    "drive": False,
                },
            )
            for mode in MODES
        }
        cut = [decision, *requests.values()]
        at_once(*[partial(server.lose, request, answered=False) for request in cut])
        server.restart()
        ids = {story.storm(request).json["inputId"] for request in requests.values()}
        assert len(ids) == len(MODES)
        said = story.said("input")
        assert [said.count(words) for words in requests] == [1] * len(MODES)
    decided = [server.send(decision)[0] for _ in range(TIMES)]
    assert len({repr(one.json["decision"]) for one in decided}) == 1
    assert [one.json["applied"] for one in decided[1:]] == [False] * (TIMES - 1)
    assert not story.effects()
