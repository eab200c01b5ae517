"""Two terminals on one session: what one does, both show (K12, AQ-11, BB-10)."""

import time

import pytest

from tests.surfaces.desk import Desk

ASKED = "? help:"
CLOSED_S_MAX = 1


@pytest.mark.spec("CM-15", "CM-26", "AQ-11")
def test_the_second_terminal_steers_approves_and_aborts_and_both_show_it(desk: Desk) -> None:
    begun = desk.fifo("begun")
    model = desk.script(
        {"when": "begin", "calls": [{"name": "shell", "args": {"command": "echo o''ne"}}]},
        {
            "when": "look left",
            "text": "Looking.",
            "calls": [{"name": "shell", "args": {"command": "echo x > begun; sleep 60"}}],
        },
        {"text": "Done."},
    )
    first = desk.terminal("run", "-s", "a", "-m", model, "begin")
    first.until(ASKED)
    number = first.shown.partition("[approval ")[2].partition("]")[0]

    second = desk.shell_terminal()
    second.until("$ ")
    second.type("perdure watch -s a &\n")
    second.until("waits for")
    second.type("perdure steer -s a 'look left'\n")
    second.until("[steer ")
    first.until("look left")
    second.type(f"perdure approve {number} -s a\n")
    second.until(f"approval {number}: granted by cli:")
    began = time.monotonic()
    first.until(f"[approval {number}] is closed: granted by cli:")
    assert time.monotonic() - began < CLOSED_S_MAX

    first.until("Looking.")
    second.until_again("Looking.")
    first.until_again(ASKED)
    later = first.shown.rpartition("[approval ")[2].partition("]")[0]
    second.type("perdure approve -s a\n")
    second.until(f"perdure approve {later}")
    second.type(f"perdure approve {later} -s a\n")
    second.until(f"approval {later}: granted by cli:")
    first.until(f"[approval {later}] is closed")
    assert begun() == "x\n"
    second.type("perdure abort -s a\n")
    second.until("[abort] was asked for")
    first.until("[abort] was asked for")
    code, shown = first.end()
    assert (code, "interrupted" in shown) == (7, True)
    second.type("wait %1; echo watched=$?\n")
    second.until("watched=0")
    second.hang_up()


@pytest.mark.spec("AQ-11")
def test_a_late_answer_hears_what_stands(desk: Desk) -> None:
    model = desk.script(
        {
            "when": "begin",
            "calls": [{"name": "shell", "args": {"command": f"echo {n}"}} for n in (1, 2)],
        },
        {"text": "Done.", "uses": 0},
    )
    first = desk.terminal("run", "-s", "a", "-m", model, "begin")
    first.until(ASKED)
    waiting = desk.run("approve", "-s", "a", "--json").document["data"]["approvals"]
    one, two = (str(each["id"]) for each in waiting)
    assert desk.run("deny", one, "not that", "-s", "a").code == 0
    first.until(f"[approval {one}] is closed: denied by cli:")
    # What was typed for the first question does not answer the second one.
    first.until_again(ASKED)
    assert f"[approval {two}]" in first.shown
    first.type("y\n")
    assert first.end()[0] == 0
    late = desk.run("approve", one, "-s", "a", "--json").document["data"]
    assert (late["applied"], late["status"]) == (False, "denied")
    assert late["decision"]["details"] == "not that"
