"""`perdure serve` through the installed command: where it listens, who may come in, how it ends."""

import http.client
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.scenarios.test_connections import linux, listeners
from tests.surfaces.desk import Desk, Running

ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/#([\w-]{43})\s")


@pytest.fixture
def serving(desk: Desk) -> Iterator[tuple[Running, str, str]]:
    """Start a server on a free port; answers it with its address and token."""
    running = desk.start("serve", "--port", "0", "-m", desk.script({"text": "Yes.", "uses": 0}))
    running.until("/#")
    running.until("\n")
    found = ADDRESS.search(running.said())
    assert found, running.said()
    yield running, f"127.0.0.1:{found[1]}", found[2]
    if running.process.poll() is None:
        running.process.kill()
        running.end()


def ask(
    address: str, method: str, path: str, token: str | None, body: object = None
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=20)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    data = None if body is None else json.dumps(body)
    connection.request(method, path, body=data, headers=headers)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


@pytest.mark.spec("CM-34", "WB-02", "WB-20")
def test_a_session_is_made_asked_and_closed_over_http(serving: Any, desk: Desk) -> None:
    running, address, token = serving
    assert ask(address, "GET", "/v1/sessions", None)[0] == 401
    made = ask(address, "POST", "/v1/sessions", token, {"name": "paris"})[1]
    path = f"/v1/sessions/{made['id']}"
    given = ask(address, "POST", f"{path}/inputs", token, {"content": "hi"})[1]
    ended = ask(address, "GET", f"{path}/inputs/{given['inputId']}?wait=20", token)[1]
    assert (ended["state"], ended["text"]) == ("answered", "Yes.")
    assert desk.run("inspect", "-s", "paris").code == 0
    running.tell(signal.SIGINT)
    last = running.end()
    assert last.code == 130
    assert last.err.count(token) == 1, "the token appears once"
    stored = b"".join(file.read_bytes() for file in desk.data.rglob("*") if file.is_file())
    assert token.encode() not in stored
    assert "Yes." in desk.run("context", "-s", "paris").out


@linux
@pytest.mark.spec("WB-01")
def test_it_listens_on_this_machine_alone_and_names_a_port_in_use(serving: Any, desk: Desk) -> None:
    running, address, _ = serving
    assert listeners(running.process.pid) == ["0100007F"]
    port = str(urlsplit(f"//{address}").port)
    taken = desk.run("serve", "--port", port, "-m", desk.script({"text": "x"}), "--json").document
    assert (taken["exit_code"], taken["outcome"]) == (2, "usage")
    assert f"port {port} of 127.0.0.1 cannot be listened on" in taken["error"]["message"]


@linux
@pytest.mark.spec("WB-03")
def test_another_address_needs_a_token_file_and_opens_no_socket_without(desk: Desk) -> None:
    model = desk.script({"text": "x"})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    refused = desk.run("serve", "--host", "0.0.0.0", "--port", port, "-m", model)
    assert refused.code == 2
    assert "needs --token-file" in refused.err
    tokens = desk.home / "tokens"
    tokens.write_text(f"ada {'k' * 43}\n")
    running = desk.start(
        "serve", "--host", "0.0.0.0", "--port", port, "--token-file", str(tokens), "-m", model
    )
    running.until(f":{port}")
    assert ask(f"127.0.0.1:{port}", "GET", "/v1/sessions", "k" * 43)[0] == 200
    running.tell(signal.SIGTERM)
    ended = running.end()
    assert ended.code == 143
    assert "k" * 43 not in ended.err + ended.out


def test_a_pipe_as_token_file_is_refused_at_once(desk: Desk) -> None:
    os.mkfifo(desk.folder / "tokens")
    refused = desk.run("serve", "--token-file", "tokens", "-m", desk.script({"text": "x"}))
    assert refused.code == 2
    assert str(Path("tokens")) in refused.err
