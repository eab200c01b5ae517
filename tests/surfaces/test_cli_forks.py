"""`perdure fork`, `rewind` and `diff`: what a person types and what is printed (CM-15, CM-24)."""

import pytest

from tests.surfaces.desk import Desk
from tests.surfaces.test_cli_forwarding import Held
from tests.surfaces.test_cli_forwarding import held as held


def entries_of(desk: Desk) -> list[int]:
    """Make a session of two turns with a call in the second; answer the entries of its context."""
    model = desk.script(
        {"when": "two", "calls": [{"name": "shell", "args": {"command": "touch made"}}], "uses": 0},
        {"text": "Done.", "uses": 0},
    )
    for text in ("one", "two"):
        assert desk.run("run", "-s", "a", "-m", model, "--allow", "shell", text).code == 0
    document = desk.run("diff", "-s", "a", "@0", "1", "--json").document
    assert document["outcome"] == "rejected", "no conversation had begun at 0"
    context = desk.run("context", "-s", "a", "--json").document["data"]
    return [one["entry"] for one in context["tokens"] if one["entry"] is not None]


@pytest.mark.spec("CM-24", "CM-05")
def test_a_fork_prints_its_id_and_what_stays_in_the_world(desk: Desk) -> None:
    first, answer, second, *_ = entries_of(desk)
    before = desk.run("sessions", "show", "a", "--json").document["data"]
    told = desk.run("fork", "-s", "a", "--at", str(answer), "--dry-run")
    assert told.code == 0
    assert "stays in the world" in told.out
    assert "shell" in told.out
    assert "touch made" in told.out
    again = desk.run("fork", "-s", "a", "--at", str(second), "--dry-run", "--json").document
    assert [one["outcome"] for one in again["data"]["effects"]] == ["finished"]
    assert again["data"]["conversation"] is None
    assert desk.run("sessions", "show", "a", "--json").document["data"] == before

    forked = desk.run("fork", "-s", "a", "--at", str(answer), "--label", "x", "--request-id", "k")
    assert forked.code == 0
    assert "stays in the world" in forked.err
    number = int(forked.out)
    repeat = desk.run("fork", "-s", "a", "--at", str(answer), "--label", "x", "--request-id", "k")
    assert repeat.out == forked.out
    inspected = desk.run("inspect", "-s", "a", "--conversation", str(number), "--json").document
    assert inspected["data"]["context"]["entries"] == 2
    assert inspected["data"]["live"] == [], "nothing is driven"

    model = desk.script({"text": "Other.", "uses": 0}, name="other.json")
    words = ("run", "-s", "a", "-m", model, "--conversation", str(number), "three")
    assert desk.run(*words).out == "Other.\n"
    late = desk.run("fork", "-s", "a", "--conversation", str(number), "--at", str(first), "--json")
    assert late.document["conversation"] == late.document["data"]["conversation"]
    assert late.document["data"]["effects"] == [], "the calls of another branch are not its own"

    shown = desk.run("diff", "-s", "a", "1", str(number))
    assert "apart since" in shown.out
    assert "three" in shown.out
    assert "one" not in shown.out.split()
    compared = desk.run("diff", "-s", "a", "1", str(number), "--json").document["data"]
    assert [one["kind"] for one in compared["left"]["entries"]] == [
        "user", "assistant", "tool_result", "assistant",
    ]  # fmt: skip
    assert [one["text"] for one in compared["right"]["entries"]] == ["three", "Other."]
    assert desk.run("diff", "-s", "a", "1", "1").out == "no difference\n"


@pytest.mark.spec("CM-24", "CM-12")
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("fork", "--at", "3", "--as-of", "4"), 2, "exclude each other"),
        (("rewind",), 2, "--at ENTRY"),
        (("fork", "--at", "99999"), 3, "not part of conversation"),
        (("rewind", "--as-of", "2"), 3, "end of a main commit"),
        (("fork", "--conversation", "77"), 3, "no conversation 77"),
        (("diff", "1", "one"), 2, "ID@COMMIT"),
        (("diff", "1", "9@0"), 3, "no conversation 9"),
    ],
)
def test_a_wrong_target_is_said_and_changes_nothing(
    desk: Desk, words: tuple[str, ...], code: int, says: str
) -> None:
    desk.make("a")
    before = desk.run("sessions", "show", "a", "--json").document["data"]
    refused = desk.run(words[0], "-s", "a", *words[1:])
    assert (refused.code, refused.out) == (code, "")
    assert says in refused.err
    assert desk.run("sessions", "show", "a", "--json").document["data"] == before


@pytest.mark.spec("CM-15", "CM-24", "FK-10")
def test_fork_and_rewind_work_beside_the_process_that_runs_it(held: Held) -> None:
    desk = held.desk
    document = desk.run("inspect", "-s", "a", "--json").document["data"]
    kept = desk.run("fork", "-s", "a", "--as-of", str(document["boundary"]), "--json").document
    assert [one["outcome"] for one in kept["data"]["effects"]] == ["running"]
    spared = desk.run("rewind", "-s", "a", "--as-of", str(document["boundary"]), "--keep-running")
    assert spared.code == 0
    assert held.run.process.poll() is None
    back = desk.run("rewind", "-s", "a", "--as-of", str(document["boundary"]), "--json").document
    assert back["outcome"] == "done"
    assert [one["outcome"] for one in back["data"]["effects"]] == ["interrupted"]
    assert held.run.end().code == 7
    assert int(spared.out) < back["conversation"]


@pytest.mark.spec("CM-24", "FK-10")
def test_rewind_ends_what_a_killed_process_left(desk: Desk) -> None:
    held = Held(desk)
    held.run.process.kill()
    held.run.end()
    boundary = desk.run("inspect", "-s", "a", "--json").document["data"]["boundary"]
    back = desk.run("rewind", "-s", "a", "--as-of", str(boundary), "--json").document
    assert back["outcome"] == "done"
    assert [one["outcome"] for one in back["data"]["effects"]] == ["interrupted"]
    assert desk.run("inspect", "-s", "a", "--json").document["data"]["live"] == []
    held.let_go()
