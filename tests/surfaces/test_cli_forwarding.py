"""A command opens the session, else its owner does what it asks (CM-15 to CM-17, CM-19, CM-26)."""

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.hosts.control_socket import token_of
from perdure.opening import open_store, system_ports
from perdure.records.addresses import Address
from perdure.records.sessions import Owner
from perdure.storage.locks import holder_of
from tests.surfaces.desk import Desk, Running

HELD = "echo $$ > started; cat gate"
"""A command that says that it runs, and ends when somebody writes into the pipe `gate`."""


class Held:
    """A process that has a session open and runs a call of it, until it is let go."""

    def __init__(self, desk: Desk, *, asks: bool = False) -> None:
        self.desk = desk
        self.model = desk.script(
            {"when": "begin", "calls": [{"name": "shell", "args": {"command": HELD}}], "uses": 0},
            {"when": "second", "text": "The second answer.", "uses": 0},
            {"when": "be brief", "text": "Brief.", "uses": 0},
            {"text": "The first answer.", "uses": 0},
        )
        self.started = desk.fifo("started")
        os.mkfifo(desk.folder / "gate")
        self._gate = os.open(desk.folder / "gate", os.O_RDWR)
        self.run = self.start("run", "-m", self.model, "begin")
        self.started()

    def start(self, command: str, *words: str) -> Running:
        return self.desk.start(command, "-s", "a", "--allow", "shell", *words)

    def let_go(self) -> None:
        """Let the call end."""
        os.write(self._gate, b"gone on\n")
        os.close(self._gate)

    @property
    def owner(self) -> Owner:
        (lock,) = self.desk.data.glob("*.lock")
        found = holder_of(lock)
        assert found is not None
        return found

    def close(self) -> None:
        if self.run.process.poll() is None:
            self.run.process.send_signal(signal.SIGCONT)
            self.run.process.kill()
            self.run.end()


@pytest.fixture
def held(desk: Desk) -> Iterator[Held]:
    held = Held(desk)
    yield held
    held.close()


def ask(owner: Owner, path: str, token: str | None) -> tuple[int, Any]:
    """Ask a control address without any of perdure's own client."""
    assert owner.control is not None
    connection = http.client.HTTPConnection("control")
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(owner.control)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


@pytest.mark.spec("CM-16")
def test_the_owner_speaks_the_http_api_behind_its_token_and_is_gone_after_close(
    held: Held,
) -> None:
    owner = held.owner
    assert owner.pid == held.run.process.pid
    assert owner.control is not None
    token = token_of(owner.control)
    for wrong in (None, "x" * len(token)):
        assert ask(owner, "/v1/sessions", wrong)[0] == 401
    status, found = ask(owner, "/v1/sessions", token)
    assert status == 200
    assert [one["name"] for one in found["sessions"]] == ["a"]
    session = found["sessions"][0]["id"]
    assert ask(owner, f"/v1/sessions/{session}/approvals", token)[0] == 200
    assert ask(owner, "/", token)[0] == 404, "the page is the server's alone"
    folder = Path(owner.control).parent
    held.let_go()
    assert held.run.end().code == 0
    assert not folder.exists()
    stored = b"".join(path.read_bytes() for path in held.desk.data.rglob("*") if path.is_file())
    assert token.encode() not in stored


@pytest.mark.spec("CM-16")
def test_what_a_killed_owner_left_is_replaced_by_the_next(held: Held) -> None:
    left = held.owner.control
    assert left is not None
    held.run.process.kill()
    held.run.end()
    assert Path(left).exists()
    held.let_go()
    ended = held.desk.run("resume", "-s", "a", "-m", held.model)
    assert ended.code == 0
    assert not Path(left).parent.exists()


@pytest.mark.spec("CM-15", "CM-19")
def test_run_is_forwarded_queued_and_followed_to_its_end(held: Held) -> None:
    second = held.start("run", "-m", held.model, "--request-id", "k", "-o", "out", "the second")
    second.until("is given to the process that has 'a' open")
    held.let_go()
    ended = second.end()
    assert (ended.code, ended.out) == (0, "The second answer.\n")
    assert (held.desk.folder / "out").read_text() == "The second answer.\n"
    first = held.run.end()
    assert first.code == 0
    assert first.out == "The first answer.\n"
    again = held.desk.run(
        "run", "-s", "a", "-m", held.model, "--request-id", "k", "--json", "the second"
    ).document
    assert again["answer"] == "The second answer."
    assert again["usage"] is None, "a repeated request asks no model"


def budgets_of(desk: Desk) -> list[Any]:
    """Answer the budgets that the inputs of the session came with."""
    sessions = open_store(f"sqlite:{desk.store}", system_ports())

    async def read() -> list[Any]:
        storage = await sessions.open("a", create=False, read_only=True)
        inputs = Address(kind="value", namespace="perdure.input")
        found = await storage.scan_values(inputs, after=None, limit=100)
        await sessions.close()
        return [json.loads(bytes(one.value_json)) for one in found]

    return [one["budget"] for one in perdure.run(read()) if "budget" in one]


@pytest.mark.spec("CM-19", "BG-02")
def test_a_forwarded_text_keeps_its_budget(held: Held) -> None:
    second = held.start("run", "-m", held.model, "--max-turns", "7", "the second")
    second.until("is given to")
    held.let_go()
    assert second.end().code == 0
    assert held.run.end().code == 0
    assert budgets_of(held.desk) == [{"currency": "USD", "turns": 7}]


@pytest.mark.spec("CM-19")
def test_the_other_queues_are_chosen_and_a_time_limit_ends_only_the_wait(held: Held) -> None:
    kept = held.desk.run("run", "-s", "a", "-m", held.model, "--next", "--timeout", "0.5", "later")
    assert kept.code == 5
    steered = held.start("run", "-m", held.model, "--steer", "be brief")
    steered.until("is given to")
    queue = held.desk.run("inspect", "-s", "a", "--json").document["data"]["queue"]
    assert [(one["mode"], one["preview"]) for one in queue] == [
        ("nextRun", "later"),
        ("steer", "be brief"),
    ]
    held.let_go()
    assert steered.end().out == "Brief.\n"
    assert held.run.end().code == 0
    (left,) = held.desk.run("inspect", "-s", "a", "--json").document["data"]["queue"]
    assert left["preview"] == "later"
    both = held.desk.run("run", "-s", "a", "-m", held.model, "--next", "--steer", "x")
    assert both.code == 2


@pytest.mark.spec("CM-15", "CM-19")
def test_when_the_owner_is_killed_the_command_opens_the_session_itself(held: Held) -> None:
    second = held.start("run", "-m", held.model, "the second")
    second.until("is given to")
    held.run.process.kill()
    held.run.end()
    held.let_go()
    ended = second.end()
    assert (ended.code, ended.out) == (0, "The second answer.\n")
    inputs = held.desk.run("context", "-s", "a", "--json").out
    assert inputs.count("the second") == 1


@pytest.mark.spec("CM-15", "CM-26")
def test_steer_and_follow_up_print_the_input_and_abort_the_withdrawn_texts(held: Held) -> None:
    desk = held.desk
    steered = desk.run("steer", "-s", "a", "look", "left", "--request-id", "one")
    again = desk.run("steer", "-s", "a", "look", "left", "--request-id", "one")
    assert steered.code == 0
    assert again.out == steered.out
    number = int(steered.out)
    queued = desk.run("follow-up", "-s", "a", "-", "--json", typed="and then").document
    assert queued["input_id"] == int(queued["data"]["input_id"])
    refused = desk.run("abort", "-s", "a", "--only-if", "99999", "--json").document
    assert (refused["exit_code"], refused["error"]["code"]) == (3, "version_mismatch")
    aborted = desk.run("abort", "-s", "a", "--only-if", str(number))
    assert aborted.out == f"{number}  steer  look left\n{queued['input_id']}  followUp  and then\n"
    first = held.run.end()
    assert first.code == 7
    assert "[abort] was asked for" in first.err
    pid = int((desk.folder / "pid").read_text()) if (desk.folder / "pid").exists() else None
    assert pid is None or not Path(f"/proc/{pid}").exists()


@pytest.mark.spec("CM-15", "CM-26")
def test_the_same_commands_open_the_session_when_nobody_has_it(desk: Desk) -> None:
    desk.make("a")
    steered = desk.run("steer", "-s", "a", "look left", "--json").document
    assert steered["outcome"] == "done"
    queued = desk.run("follow-up", "-s", "a", "and then")
    assert "nobody has the session open" in queued.err
    aborted = desk.run("abort", "-s", "a", "--json").document
    assert [one["text"] for one in aborted["data"]["drained"]] == ["look left", "and then"]
    assert "nothing runs" in desk.run("abort", "-s", "a").err
    watched = desk.run("watch", "-s", "a")
    assert watched.code == 0
    assert "nothing is live" in watched.out


@pytest.mark.spec("CM-15")
def test_a_session_is_inspected_renamed_and_deleted_beside_its_owner(held: Held) -> None:
    desk = held.desk
    shown = desk.run("inspect", "-s", "a", "--json").document["data"]
    assert shown["owner"]["pid"] == held.run.process.pid
    assert desk.run("sessions", "rename", "a", "b").code == 0
    assert [one["name"] for one in desk.run("sessions", "--json").document["data"]] == ["b"]
    token = token_of(str(held.owner.control))
    assert ask(held.owner, "/v1/sessions", token)[1]["sessions"][0]["name"] == "b"
    assert desk.run("sessions", "delete", "b").code == 2
    assert desk.run("sessions", "delete", "b", "--yes").code == 0
    assert desk.run("sessions", "--json").document["data"] == []
    assert held.run.end().code in (7, 9)
    assert not [
        path for path in desk.data.rglob("*") if "launch" in path.parts[-2:][0] and path.is_file()
    ]


@pytest.mark.spec("CM-17")
def test_an_owner_that_was_stopped_changes_nothing_and_is_named(held: Held) -> None:
    desk, pid = held.desk, held.run.process.pid
    held.run.tell(signal.SIGSTOP)
    before = desk.run("inspect", "-s", "a", "--json").document["data"]
    began = time.monotonic()
    commands = [
        desk.start("steer", "-s", "a", "x", "--json"),
        desk.start("sessions", "rename", "a", "b", "--json"),
        desk.start("watch", "-s", "a"),
    ]
    steer, rename, watch = (command.end() for command in commands)
    assert 4 < time.monotonic() - began < 12
    for ended in (steer, rename):
        document = ended.document
        assert (document["outcome"], document["exit_code"]) == ("busy", 8)
        assert document["data"]["pid"] == pid
        assert document["data"]["host"] == os.uname().nodename
        assert f"process {pid} on host" in document["error"]["message"]
        assert "did not answer in 5 s" in document["error"]["message"]
        assert "since 20" in document["error"]["message"]
        assert "inspect" in document["error"]["hint"]
    assert watch.code == 8
    assert "running" in watch.out, "the session as it is was shown before"
    assert desk.run("inspect", "-s", "a", "--json").document["data"] == before
    checks = desk.run("doctor", "--json").document["data"]
    assert [row["result"] for row in checks if row["name"] == "owner"] == ["warn"]
    held.run.tell(signal.SIGCONT)
    checks = desk.run("doctor", "--json").document["data"]
    assert [row["result"] for row in checks if row["name"] == "owner"] == ["ok"]
    held.let_go()
    assert held.run.end().code == 0
    assert desk.run("inspect", "-s", "a", "--json").document["data"]["queue"] == []


@pytest.mark.spec("CM-17")
def test_an_owner_on_another_host_is_not_waited_for(held: Held) -> None:
    (lock,) = held.desk.data.glob("*.lock")
    lock.write_bytes(lock.read_bytes().replace(os.uname().nodename.encode(), b"elsewhere"))
    ended = held.desk.run("steer", "-s", "a", "x")
    assert ended.code == 8
    assert "on host elsewhere" in ended.err
    assert "that is another host" in ended.err


@pytest.mark.spec("CM-26", "CM-04")
def test_a_watch_goes_on_after_its_owner_was_killed_without_gap_or_double(held: Held) -> None:
    desk = held.desk
    watch = desk.start("watch", "-s", "a", "--json-events")
    watch.until('"type":"base"', "out")
    desk.run("steer", "-s", "a", "be brief")
    watch.until('"type":"commit"', "out")
    held.run.process.kill()
    held.run.end()
    held.let_go()
    resumed = desk.run("resume", "-s", "a", "-m", held.model)
    assert resumed.code == 0
    ended = watch.end()
    assert ended.code == 0
    events = ended.events
    base = next(one for one in events if one["type"] == "base")["as_of"]
    shown = [(one["first_seq"], one["last_seq"]) for one in events if one["type"] == "commit"]
    assert shown == sorted(set(shown))
    assert shown[0][0] > base
    last = desk.run("inspect", "-s", "a", "--json").document["data"]["boundary"]
    assert shown[-1][1] == last
    texts = "".join(one["text"] for one in events if one["type"] == "delta")
    assert texts == "Brief."
