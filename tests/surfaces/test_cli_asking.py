"""A person is asked on the terminal that runs the session, and nowhere else (AQ-07, AQ-08)."""

import json

import pytest

from tests.surfaces.desk import Desk

ASKED = "? help:"


def asking(desk: Desk, *calls: dict[str, object]) -> str:
    return desk.script({"when": "go", "calls": list(calls)}, {"text": "Done.", "uses": 0})


def shell(command: str) -> dict[str, object]:
    return {"name": "shell", "args": {"command": command}}


@pytest.mark.spec("AQ-07")
def test_questions_come_one_at_a_time_in_id_order_while_other_work_goes_on(desk: Desk) -> None:
    model = asking(
        desk,
        shell("echo one > one"),
        shell("echo two > two"),
        {"name": "glob", "args": {"pattern": "*"}},
    )
    terminal = desk.terminal("run", "-s", "a", "-m", model, "go")
    terminal.until("[glob ")
    terminal.until("finished")
    terminal.until(ASKED)
    assert terminal.shown.count("wants to run") == 1
    assert '{"command":"echo one > one"}' in terminal.shown
    terminal.type("?\n")
    terminal.until("Nothing is decided by an empty line")
    terminal.until_again(ASKED)
    terminal.type("\n")
    terminal.until_again(ASKED)
    assert terminal.shown.count("wants to run") == 1
    terminal.type("y\n")
    terminal.until_again("wants to run")
    terminal.until_again(ASKED)
    terminal.type("n\n")
    code, shown = terminal.end()
    assert code == 0
    assert (desk.folder / "one").read_text() == "one\n"
    assert not (desk.folder / "two").exists()
    assert "granted by terminal:" in shown
    assert "denied by terminal:" in shown
    assert shown.rstrip().endswith("Done.")


@pytest.mark.spec("AQ-07")
def test_a_call_is_denied_with_a_reason_that_the_model_reads(desk: Desk) -> None:
    model = desk.script(
        {"calls": [shell("rm -r /")]}, {"when": "that is the root", "text": "I see."}
    )
    terminal = desk.terminal("run", "-s", "a", "-m", model, "go")
    terminal.until(ASKED)
    terminal.type("d\n")
    terminal.until("why not?")
    terminal.type("\n")
    terminal.until_again(ASKED)
    terminal.type("d\n")
    terminal.until_again("why not?")
    terminal.type("that is the root\n")
    code, shown = terminal.end()
    assert code == 0
    assert "I see." in shown


@pytest.mark.spec("AQ-07", "AQ-08")
def test_the_end_of_input_and_a_hang_up_decide_nothing(desk: Desk) -> None:
    model = asking(desk, shell("echo one > one"))
    terminal = desk.terminal("run", "-s", "a", "-m", model, "go")
    terminal.until(ASKED)
    terminal.type("\x04")
    code, shown = terminal.end()
    assert code == 5
    assert "perdure approve " in shown
    terminal = desk.terminal("resume", "-s", "a", "-m", model)
    terminal.until(ASKED)
    terminal.hang_up()
    waiting = desk.run("approve", "-s", "a", "--json").document["data"]["approvals"]
    assert [one["tool"] for one in waiting] == ["shell"]
    assert not (desk.folder / "one").exists()


@pytest.mark.spec("CM-08")
def test_ctrl_c_leaves_an_open_question_undecided(desk: Desk) -> None:
    model = asking(desk, shell("echo one > one"))
    terminal = desk.terminal("run", "-s", "a", "-m", model, "go")
    terminal.until(ASKED)
    terminal.type("\x03")
    code, shown = terminal.end()
    assert code == 130
    assert shown.rstrip().endswith("--session a")
    (one,) = desk.run("approve", "-s", "a", "--json").document["data"]["approvals"]
    assert one["status"] == "waiting"
    terminal = desk.terminal("resume", "-s", "a", "-m", model)
    terminal.until(ASKED)
    terminal.type("y\n")
    assert terminal.end()[0] == 0
    assert (desk.folder / "one").exists()


@pytest.mark.spec("AQ-08")
@pytest.mark.parametrize("on_terminal", [False, True], ids=["no terminal", "no ask"])
def test_where_nobody_can_be_asked_the_command_ends_and_says_how_to_decide(
    desk: Desk, *, on_terminal: bool
) -> None:
    model = asking(desk, shell("echo one > one"), shell("echo two > two"))
    if on_terminal:
        code, said = desk.on_terminal("run", "-s", "a b", "-m", model, "--no-ask", "go")
    else:
        ended = desk.run("run", "-s", "a b", "-m", model, "go")
        code, said = ended.code, ended.err
        assert ended.out == ""
    assert code == 5
    assert "wants to run" not in said
    lines = [line.strip() for line in said.splitlines() if "perdure approve" in line]
    assert len(lines) == 2
    document = desk.run("resume", "-s", "a b", "-m", model, "--json").document
    assert document["outcome"] == "suspended"
    listed = document["data"]["approvals"]
    assert [one["command"] for one in listed] == lines
    assert [one["tool"] for one in listed] == ["shell", "shell"]
    assert all(one["age_ms"] >= 0 for one in listed)
    for line in lines:
        assert desk.shell(line).code == 0
    resumed = desk.run("resume", "-s", "a b", "-m", model)
    assert (resumed.code, resumed.out) == (0, "Done.\n")
    assert (desk.folder / "one").exists()
    assert (desk.folder / "two").exists()


@pytest.mark.spec("AQ-05")
def test_what_is_shown_is_what_runs_and_acts_on_no_terminal(desk: Desk) -> None:
    model = asking(desk, shell("printf '\x1b[31m9007199254740993'  >  'a b'"))
    terminal = desk.terminal("run", "-s", "a", "-m", model, "go")
    terminal.until(ASKED)
    assert "\x1b[31m9" not in terminal.shown
    (one,) = desk.run("approve", "-s", "a", "--json").document["data"]["approvals"]
    assert json.loads(one["arguments"]) == {
        "command": "printf '\x1b[31m9007199254740993'  >  'a b'"
    }
    terminal.type("y\n")
    assert terminal.end()[0] == 0
    assert (desk.folder / "a b").read_bytes() == b"\x1b[31m9007199254740993"
