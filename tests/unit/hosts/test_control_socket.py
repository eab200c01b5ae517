"""The control address: private, there from open to close, and nearly free until it is used."""

import asyncio
import os
import socket
import stat
from base64 import urlsafe_b64decode
from pathlib import Path

import pytest

from perdure.hosts.control_socket import PATH_BYTES_MAX, TOKEN_BYTES, ControlSocket, token_of


class Echo:
    """Answers every connection with what it sends."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    async def begin(self) -> "Echo":
        self._server = await asyncio.start_unix_server(self._answer, sock=self._listener)
        return self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def close(self) -> None:
        self._server.close()


async def made() -> ControlSocket:
    return await asyncio.to_thread(ControlSocket.make)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.spec("SN-11")
def test_folder_socket_and_token_are_private_and_gone_when_removed() -> None:
    before = os.umask(0)
    try:
        control = ControlSocket.make()
    finally:
        os.umask(before)
    address = Path(control.address)
    assert mode(address.parent) == 0o700
    assert {path.name: mode(path) for path in address.parent.iterdir()} == {
        "socket": 0o600,
        "token": 0o600,
    }
    assert len(os.fsencode(address)) <= PATH_BYTES_MAX
    token = token_of(control.address)
    assert len(urlsafe_b64decode(token + "=")) == TOKEN_BYTES
    other = ControlSocket.make()
    assert token_of(other.address) != token
    for one in (control, other):
        asyncio.run(one.close())
        one.remove()
        assert not Path(one.address).parent.exists()


@pytest.mark.spec("SN-11")
def test_a_long_folder_for_temporary_files_is_left_for_a_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    control = ControlSocket.make()
    assert not control.address.startswith(str(long))
    asyncio.run(control.close())
    control.remove()


@pytest.mark.spec("SN-11")
def test_a_token_that_others_could_have_written_is_not_read() -> None:
    control = ControlSocket.make()
    control.folder.chmod(0o750)
    with pytest.raises(PermissionError, match="not private"):
        token_of(control.address)
    asyncio.run(control.close())
    control.remove()


@pytest.mark.spec("SN-11")
async def test_what_answers_is_made_for_the_first_connection_which_it_gets() -> None:
    control = await made()
    begun: list[str] = []

    async def begin(listener: socket.socket, token: str) -> Echo:
        begun.append(token)
        return await Echo(listener).begin()

    control.listen(begin, failed=lambda error: pytest.fail(str(error)))
    assert begun == []
    for text in (b"first\n", b"second\n"):
        reader, writer = await asyncio.open_unix_connection(control.address)
        writer.write(text)
        assert await reader.readline() == text
        writer.close()
        await writer.wait_closed()
    assert begun == [await asyncio.to_thread(token_of, control.address)]
    await control.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_unix_connection(control.address)
    await asyncio.to_thread(control.remove)


@pytest.mark.spec("SN-11")
async def test_when_nothing_can_answer_the_host_hears_why_and_callers_are_refused() -> None:
    control = await made()
    heard: list[BaseException] = []

    async def begin(_listener: socket.socket, _token: str) -> Echo:
        raise ImportError("no server here")

    control.listen(begin, heard.append)
    reader, writer = await asyncio.open_unix_connection(control.address)
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    writer.close()
    assert [str(error) for error in heard] == ["no server here"]
    await control.close()
    await asyncio.to_thread(control.remove)


@pytest.mark.spec("SN-11")
async def test_closing_before_anybody_came_leaves_no_reader_on_the_loop() -> None:
    control = await made()

    async def begin(_listener: socket.socket, _token: str) -> Echo:
        raise AssertionError

    control.listen(begin, failed=lambda error: pytest.fail(str(error)))
    await control.close()
    await control.close()
    await asyncio.to_thread(control.remove)
    await asyncio.to_thread(control.remove)


@pytest.mark.spec("SN-11")
def test_a_forked_child_keeps_no_end_of_the_socket() -> None:
    control = ControlSocket.make()
    pid = os.fork()
    if pid == 0:
        os._exit(1 if control.is_listening else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert Path(control.address).exists()
    asyncio.run(control.close())
    control.remove()
