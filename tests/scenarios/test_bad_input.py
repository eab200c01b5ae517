"""Bad input through the command line: a clear error or a repaired value, and the session goes on.

Every case ends with one more message in the same session, which is accepted and answered.
"""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.opening import open_store, system_ports
from perdure.records.sessions import EntryScan
from tests.surfaces.desk import Desk, Ended

pytestmark = pytest.mark.timeout(60)

FINE = {"text": "fine", "uses": 0}
ODD_NAMES = ("a/b", "../../escape")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Answer a fresh desk."""
    return Desk(tmp_path)


def ask(desk: Desk, model: str, text: str, *, session: str = "s", **env: str) -> Ended:
    return desk.run("run", "-s", session, "-m", model, "--yes", "--json", text, wait_s=30, **env)


def goes_on(desk: Desk, model: str, *, session: str = "s") -> None:
    """The last step of every case."""
    ended = ask(desk, model, "one more message", session=session)
    assert ended.code == 0, ended
    assert ended.document["answer"] == "fine"


def results(desk: Desk, *, session: str = "s") -> list[str]:
    """Answer the texts of every stored tool result, in call order."""
    sessions = open_store(f"sqlite:{desk.store}", system_ports())

    async def read() -> list[str]:
        storage = await sessions.open(session, create=False, read_only=True)
        entries = list(await storage.scan_entries(EntryScan(kind="tool_result", limit=100)))
        await sessions.close()
        entries.sort(key=lambda entry: entry.call_index or 0)
        return [entry.payload["message"]["content"][0]["text"] for entry in entries]

    return perdure.run(read())


def shell(command: str, when: str = "go") -> dict[str, Any]:
    return {"when": when, "calls": [{"name": "shell", "args": {"command": command}}]}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_session_name_is_a_name_and_never_a_path(desk: Desk, name: str) -> None:
    before = {path for path in desk.home.parent.rglob("*") if desk.data not in path.parents}
    model = desk.script(FINE)
    first = desk.run("run", f"--session={name}", "-m", model, "--json", "hi")
    assert first.code == 0, first
    assert first.document["session"] == name
    goes_on(desk, model, session=name)
    after = {path for path in desk.home.parent.rglob("*") if desk.data not in path.parents}
    assert {path.name for path in after - before} <= {"script.json", "data"}


@pytest.mark.parametrize("name", ["", "a\nb"])
def test_a_name_that_is_none_is_refused_with_what_would_be_accepted(desk: Desk, name: str) -> None:
    model = desk.script(FINE)
    refused = desk.run("run", f"--session={name}", "-m", model, "--json", "hi")
    assert refused.code == 3, refused
    assert "a session name is 1 to 256 UTF-8 bytes" in refused.document["error"]["message"]
    assert repr(name) in refused.document["error"]["message"]
    goes_on(desk, model)


def test_a_nul_byte_in_a_tool_result_is_shown_and_stored_as_a_picture_of_it(desk: Desk) -> None:
    model = desk.script(shell(r"printf 'a\000b\377'"), FINE)
    assert ask(desk, model, "go").document["answer"] == "fine"
    (text,) = results(desk)
    assert text.startswith("a\u2400b\ufffd")
    goes_on(desk, model)


def test_ten_megabytes_of_output_are_capped_with_their_true_size(desk: Desk) -> None:
    model = desk.script(shell("head -c 10485760 /dev/zero | tr '\\0' x; echo end"), FINE)
    assert ask(desk, model, "go").document["answer"] == "fine"
    (text,) = results(desk)
    assert len(text) <= 66_000
    assert "end" in text
    assert "10485764 bytes" in text
    assert desk.store.stat().st_size < 1_000_000
    goes_on(desk, model)


BAD_ARGUMENTS = {
    '{"path": NaN}': "NaN is not JSON",
    '{"path": -Infinity}': "-Infinity is not JSON",
    '{"path": 1e999}': "1e999 is out of range",
    '{"path": "a.t': "not valid JSON",
    '{"path": "a"': "not valid JSON",
    "": "path",
    "[1]": "the top level is a list",
    '{"path": 7}': "path",
    '{"path": "a", "path": "b"}': "stands twice",
}


def test_arguments_that_are_none_come_back_as_error_results(desk: Desk) -> None:
    calls = [{"name": "read", "argsText": raw} for raw in BAD_ARGUMENTS]
    model = desk.script({"when": "go", "calls": calls}, FINE)
    assert ask(desk, model, "go").document["answer"] == "fine"
    told = results(desk)
    assert len(told) == len(BAD_ARGUMENTS)
    for text, said in zip(told, BAD_ARGUMENTS.values(), strict=True):
        assert text.startswith("not executed: ")
        assert said in text
        assert "read takes {" in text
    goes_on(desk, model)


def test_an_unknown_model_is_refused_and_nothing_is_stored(desk: Desk) -> None:
    model = desk.script(FINE)
    for name, said in (
        ("nosuch:model", "nosuch"),
        ("justaname", "provider:model"),
        ("scripted:/no/such/file", "/no/such/file"),
    ):
        refused = ask(desk, name, "hi")
        assert refused.code != 0
        assert said in refused.document["error"]["message"]
    listed = desk.run("sessions", "--json").document["data"]
    assert listed == []
    goes_on(desk, model)


def test_no_key_fails_the_input_and_names_the_variable(desk: Desk) -> None:
    ended = ask(desk, "openai-chat:gpt-4o", "hi", OPENAI_API_KEY="")
    assert ended.code not in (0, 2)
    assert "OPENAI_API_KEY is not set" in ended.document["error"]["message"]
    goes_on(desk, desk.script(FINE))


def test_a_disk_that_is_full_is_said_and_the_next_message_is_accepted(desk: Desk) -> None:
    big = {"when": "go", "text": "x" * 2_000_000}
    model = desk.script(big, FINE)
    goes_on(desk, model)
    line = shlex.join(["perdure", "run", "-s", "s", "-m", model, "--json", "go"])
    # No file may grow beyond 600 KiB: what the system answers then is what a full disk does.
    full = desk.shell(f"ulimit -f 600; {line}")
    assert full.code not in (0, 2)
    assert full.document["error"]["code"]
    assert str(desk.store) in full.document["error"]["message"]
    assert "fine" not in full.out
    goes_on(desk, model)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.deep
def test_a_small_file_system_that_is_full_loses_nothing(desk: Desk) -> None:
    desk.data.mkdir(mode=0o700)
    mount = f"mount -t tmpfs -o size=700k none {shlex.quote(str(desk.data))}"
    words = "w" * 30_000
    model = desk.script({"text": words, "uses": 0})
    run = shlex.join(["perdure", "run", "-s", "s", "-m", model, "--json", "hi"])
    script = (
        f"{mount} || exit 99; for i in $(seq 60); do {run} >out.json 2>err.txt || break; done; "
        f"echo $? >last; cat out.json; rm -f {shlex.quote(str(desk.data))}/filler; "
        f"mount -o remount,size=8m {shlex.quote(str(desk.data))}; {run}"
    )
    ended = desk.shell(f"unshare -m bash -c {shlex.quote(script)}")
    if ended.code == 99 or "ermitted" in ended.err:
        pytest.skip("this container may not mount")
    first, last = (json.loads(text) for text in ended.out.splitlines())
    assert first["exit_code"] not in (0, 2)
    assert "disk" in first["error"]["message"] or "full" in first["error"]["message"]
    assert last["exit_code"] == 0
    assert last["answer"] == words


def test_an_answer_for_a_missing_folder_is_refused_before_anything_is_stored(desk: Desk) -> None:
    model = desk.script(FINE)
    ended = desk.run("run", "-m", model, "-s", "a", "-o", "nowhere/answer.txt", "hi")
    assert ended.code == 2
    assert "--output 'nowhere/answer.txt' cannot be written: No such file" in ended.err
    assert desk.run("inspect", "-s", "a").code == 3
