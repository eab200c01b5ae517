"""`perdure serve` through the installed command: where it listens, who may come in, how it ends."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.test_connections import linux, listeners
from tests.surfaces.desk import Desk
from tests.surfaces.served import Server, ask, serving


@pytest.fixture
def server(desk: Desk) -> Iterator[Server]:
    """Start a server on a free port."""
    with serving(desk, "-m", desk.script({"text": "Yes.", "uses": 0})) as server:
        yield server


@pytest.mark.spec("CM-34", "WB-02", "WB-20")
def test_a_session_is_made_asked_and_closed_over_http(server: Server, desk: Desk) -> None:
    running, token = server.running, server.token
    assert ask(server.address, "GET", "/v1/sessions", None)[0] == 401
    made = server.ask("POST", "/v1/sessions", {"name": "paris"})[1]
    path = f"/v1/sessions/{made['id']}"
    given = server.ask("POST", f"{path}/inputs", {"content": "hi"})[1]
    ended = server.get(f"{path}/inputs/{given['inputId']}?wait=20")
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
def test_it_listens_on_this_machine_alone_and_names_a_port_in_use(
    server: Server, desk: Desk
) -> None:
    assert listeners(server.running.process.pid) == ["0100007F"]
    port = server.address.partition(":")[2]
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
