"""Budgets at the terminal: given with a prompt, waited for with exit code 6, raised (BG-12)."""

import pytest

from tests.surfaces.desk import Desk


@pytest.mark.spec("BG-06", "BG-11", "BG-12", "CM-20")
def test_a_budget_is_given_waited_for_and_raised_from_anywhere(desk: Desk) -> None:
    call = {"calls": [{"name": "shell", "args": {"command": "echo x >> made"}}], "uses": 0}
    model = desk.script({"when": "go", **call}, {"text": "Done.", "uses": 0})
    ended = desk.run("run", "-s", "a", "-m", model, "--yes", "--max-turns", "1", "go", "--json")
    document = ended.document
    assert (ended.code, document["outcome"]) == (6, "limit")
    (waits,) = document["waiting_for"]
    (asked,) = document["data"]["approvals"]
    assert waits["task"] == asked["id"]
    assert "turns 1 of 1 spent" in asked["prompt"]
    assert not (desk.folder / "made").exists()
    shown = desk.run("inspect", "-s", "a").out
    assert "1 of 1 turns" in shown
    again = desk.run("resume", "-s", "a", "-m", model, "--yes")
    assert again.code == 6
    assert f"perdure budget {asked['id']}" in again.err
    assert "1 of 1 turns" in again.err
    refused = desk.run("resume", "-s", "a", "-m", model, "--max-cost", "1", "--json").document
    assert refused["error"]["code"] == "nothing_to_do"
    lower = desk.run("budget", str(asked["id"]), "-s", "a", "--max-turns", "1", "--json").document
    assert (lower["exit_code"], lower["error"]["code"]) == (3, "invariant")
    raised = desk.run("budget", str(asked["id"]), "-s", "a", "--max-turns", "2", "--json").document
    assert raised["data"]["applied"] is True
    goes_on = desk.run("resume", "-s", "a", "-m", model, "--yes")
    assert goes_on.code == 0
    assert goes_on.out == "Done.\n"
    assert "2 of 2 turns" in goes_on.err
    assert (desk.folder / "made").read_text() == "x\n"


@pytest.mark.spec("BG-12", "CM-20")
def test_resume_raises_and_goes_on_in_one_act(desk: Desk) -> None:
    call = {"calls": [{"name": "shell", "args": {"command": "true"}}], "uses": 0}
    model = desk.script({"when": "go", **call}, {"text": "Done.", "uses": 0})
    assert desk.run("run", "-s", "a", "-m", model, "--yes", "--max-turns", "1", "go").code == 6
    ended = desk.run("resume", "-s", "a", "-m", model, "--yes", "--max-turns", "9")
    assert (ended.code, ended.out) == (0, "Done.\n")
    for words in (["--max-cost", "free"], ["--max-turns", "0"]):
        assert desk.run("run", "-s", "b", "-m", model, *words, "go").code in (2, 3)
