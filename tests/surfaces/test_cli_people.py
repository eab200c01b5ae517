"""People beside a session: what waits is listed and decided from any terminal (CM-25)."""

import json

import pytest

from tests.surfaces.desk import Desk


def held(desk: Desk, *sessions: str, calls: int = 1) -> str:
    """Make sessions in which calls of the shell wait for a person; answers the model."""
    commands = [f"echo {number} > made-{number}" for number in range(calls)]
    model = desk.script(
        {
            "when": "go",
            "calls": [{"name": "shell", "args": {"command": text}} for text in commands],
            "uses": 0,
        },
        {"text": "Done.", "uses": 0},
    )
    for name in sessions:
        assert desk.run("run", "-s", name, "-m", model, "go").code == 5
    return model


def waiting(desk: Desk, *words: str) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = desk.run("approve", *words, "--json").document["data"][
        "approvals"
    ]
    return listed


@pytest.mark.spec("CM-25")
def test_waiting_approvals_are_listed_with_age_and_full_arguments(desk: Desk) -> None:
    long = "echo " + "x" * 400
    model = desk.script({"calls": [{"name": "shell", "args": {"command": long}}]}, {"text": "."})
    assert desk.run("run", "-s", "a", "-m", model, "go").code == 5
    held(desk, "b", calls=2)
    (one,) = waiting(desk, "-s", "a")
    assert json.loads(str(one["arguments"])) == {"command": long}
    assert isinstance(one["age_ms"], int)
    words = desk.run("approve", "-s", "a").out
    assert long in words
    assert "waiting for " in words
    assert str(one["command"]) in words
    everywhere = waiting(desk, "--all")
    assert [one["session"] for one in everywhere] == ["a", "b", "b"]
    assert desk.run("approve", "-s", "b").out.count("waiting for") == 2
    desk.make("idle")
    assert waiting(desk, "-s", "idle") == []
    assert "nothing waits" in desk.run("approve", "-s", "idle").err


@pytest.mark.spec("CM-25")
def test_a_decision_is_stored_and_drives_when_asked_to(desk: Desk) -> None:
    model = held(desk, "a", calls=2)
    first, second = waiting(desk, "-s", "a")
    granted = desk.run("approve", str(first["id"]), "-s", "a", "--json").document
    assert granted["exit_code"] == 0
    assert granted["data"]["applied"] is True
    assert granted["data"]["status"] == "granted"
    assert granted["data"]["decision"]["by"].startswith("cli:")
    assert not (desk.folder / "made-0").exists()
    ended = desk.run("deny", str(second["id"]), "too", "much", "-s", "a", "--drive")
    assert (ended.code, ended.out) == (0, "Done.\n")
    assert (desk.folder / "made-0").exists()
    assert not (desk.folder / "made-1").exists()
    assert "denied by cli:" in ended.err
    del model


@pytest.mark.spec("CM-25")
def test_a_late_decision_ends_well_with_the_standing_one(desk: Desk) -> None:
    held(desk, "a")
    (one,) = waiting(desk, "-s", "a")
    number = str(one["id"])
    assert desk.run("approve", number, "--deny", "no shell here", "-s", "a").code == 0
    late = desk.run("approve", number, "-s", "a", "--json").document
    assert late["outcome"] == "done"
    assert late["data"]["applied"] is False
    assert late["data"]["decision"]["decision"] == "deny"
    assert late["data"]["decision"]["details"] == "no shell here"
    assert "decided before" in desk.run("approve", number, "-s", "a").out


@pytest.mark.spec("CM-25")
@pytest.mark.parametrize(
    ("number", "code"), [("9999", "not_found"), ("1", "not_found"), ("2", "not_found")]
)
def test_a_wrong_id_is_refused(desk: Desk, number: str, code: str) -> None:
    held(desk, "a")
    document = desk.run("approve", number, "-s", "a", "--json").document
    assert document["exit_code"] == 3
    assert document["error"]["code"] in (code, "unknown_target")
    assert len(waiting(desk, "-s", "a")) == 1


@pytest.mark.spec("CM-12")
def test_deciding_needs_an_id_and_a_session_that_is_there(desk: Desk) -> None:
    held(desk, "alpha")
    assert desk.run("approve", "-s", "alpha", "--deny").code == 2
    assert desk.run("deny", "-s", "alpha").code == 2
    unknown = desk.run("approve", "-s", "alpah")
    assert unknown.code == 3
    assert "'alpha'" in unknown.err
