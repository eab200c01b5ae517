"""`perdure run` and `perdure resume`, as a person or a script meets them."""

import json
import shlex
import signal
import time
from pathlib import Path

import pytest

from tests.surfaces.desk import Desk

pytestmark = pytest.mark.timeout(60)

HELLO = {"text": "Hello there.", "uses": 0, "usage": {"input": 9, "output": 4}}
LOOK = {"when": "look", "text": "Let me look. ", "calls": [{"name": "list", "args": {}}]}
BEGIN = "echo begun > begun; sleep 600"
SLEEP = {"when": "sleep", "calls": [{"name": "shell", "args": {"command": BEGIN}}]}


@pytest.mark.spec("CM-02")
def test_a_pipe_gets_the_answer_and_one_newline(desk: Desk) -> None:
    ended = desk.run("run", "-m", desk.script(LOOK, HELLO), "look around")
    assert ended.out == "Hello there.\n"
    assert ended.code == 0
    assert "Let me look" not in ended.out
    assert "[list" in ended.err
    assert "finished" in ended.err


@pytest.mark.spec("CM-18")
def test_a_session_is_made_then_continued_then_found_by_its_folder(desk: Desk) -> None:
    model = desk.script(HELLO)
    first = desk.run("run", "-m", model, "--json", "hi").document
    name = first["session"]
    assert name.startswith("run-")
    listed = desk.run("sessions", "--json").document["data"]
    assert [(row["name"], row["folder"]) for row in listed] == [(name, str(desk.folder))]
    assert name == f"run-{listed[0]['id'][:8]}"
    again = desk.run("run", "-c", "and again")
    assert (again.code, again.out) == (0, "Hello there.\n")
    assert name not in again.err
    named = desk.run("run", "-s", name, "--json", "third").document
    assert named["conversation"] == first["conversation"]
    assert len(desk.run("sessions", "--json").document["data"]) == 1


@pytest.mark.spec("CM-18")
def test_the_new_name_is_said_and_no_session_keeps_nothing(desk: Desk) -> None:
    model = desk.script(HELLO)
    kept_nothing = desk.run("run", "--no-session", "-m", model, "hi")
    assert kept_nothing.out == "Hello there.\n"
    assert not desk.store.exists()
    assert "session run-" in desk.run("run", "-m", model, "hi").err
    assert desk.data.stat().st_mode & 0o777 == 0o700


@pytest.mark.spec("CM-03")
@pytest.mark.spec("CM-05")
def test_json_is_one_document_also_on_failure(desk: Desk) -> None:
    model = desk.script(HELLO)
    lines = [
        ("run", "-m", model, "-s", "a", "hi"),
        ("run", "--nonsense"),
        ("nonsense",),
        ("run", "-m", "nonsense", "hi"),
        ("inspect", "-s", "absent"),
        ("sessions", "list"),
    ]
    documents = []
    for words in lines:
        ended = desk.run(*words, "--json")
        documents.append(ended.document)
        assert (ended.document["error"] is None) == (ended.code == 0), words
    answered = documents[0]
    assert answered["answer"] == "Hello there."
    assert answered["usage"]["input"] == 9
    assert answered["usage"]["cache_read"] is None


@pytest.mark.spec("CM-04")
@pytest.mark.spec("CM-05")
def test_events_parse_alone_and_the_last_deltas_are_the_answer(desk: Desk) -> None:
    reply = {"text": "So it is done. " * 30, "chunk": 9, "delayMs": 5, "usage": {"input": 7}}
    ended = desk.run("run", "-m", desk.script(LOOK, reply), "--json-events", "look")
    events = ended.events
    kinds = [event["type"] for event in events]
    assert kinds[0] == "accepted"
    assert kinds[-1] == "result"
    assert kinds.count("result") == 1
    assert {"tool", "delta", "usage"} <= set(kinds)
    deltas = [event for event in events if event["type"] == "delta"]
    last = deltas[-1]["generation"]
    text = "".join(one["text"] for one in deltas if one["generation"] == last)
    assert text == events[-1]["result"]["answer"] == reply["text"]
    assert len([one for one in deltas if one["generation"] == last]) > 1


@pytest.mark.spec("CM-04")
def test_deltas_of_a_failed_attempt_do_not_mix_with_the_answer(desk: Desk) -> None:
    broken = {
        "text": "this is cut " * 20,
        "chunk": 6,
        "delayMs": 10,
        "error": {"code": "stream_ended", "at": 36, "retryAfterMs": 1},
    }
    ended = desk.run("run", "-m", desk.script(broken, HELLO), "--json-events", "hi")
    deltas = [event for event in ended.events if event["type"] == "delta"]
    names = list(dict.fromkeys(one["generation"] for one in deltas))
    assert len(names) == 2
    assert "".join(one["text"] for one in deltas if one["generation"] == names[-1]) == (
        "Hello there."
    )


@pytest.mark.spec("CM-07")
def test_a_prompt_comes_from_arguments_and_standard_input(desk: Desk) -> None:
    model = desk.script(
        {"when": "<stdin>\nnumbers\n</stdin>", "text": "both", "uses": 0},
        {"when": "only this", "text": "one", "uses": 0},
        {"when": "bad \ufffd end", "text": "replaced", "uses": 0},
    )
    words = ("run", "--no-session", "-m", model)
    assert desk.run(*words, "add", "these", typed="numbers").out == "both\n"
    assert desk.run(*words, "-", typed="only this").out == "one\n"
    assert desk.run(*words, typed=b"only this \xff\x00").out == "one\n"
    assert desk.run(*words, typed=b"bad \xff end").out == "replaced\n"
    most = desk.run(*words, "-", typed=b"only this ".ljust(4 * 1024 * 1024, b"x"))
    assert (most.code, most.out) == (0, "one\n")
    nothing = desk.run(*words)
    assert nothing.code == 2
    assert "no prompt" in nothing.err
    huge = desk.run(*words, "-", typed=b"x" * (4 * 1024 * 1024 + 1))
    assert huge.code == 2
    assert "4,194,305" in huge.err


@pytest.mark.spec("CM-07")
def test_no_prompt_on_a_terminal_is_refused_at_once(desk: Desk) -> None:
    code, shown = desk.on_terminal("run")
    assert code == 2
    assert "no prompt" in shown


@pytest.mark.spec("CM-20")
@pytest.mark.spec("CM-01")
@pytest.mark.parametrize(
    ("code", "exit_code", "outcome"), [("auth", 4, "failed"), ("budget", 6, "limit")]
)
def test_a_failed_input_ends_with_its_code(
    desk: Desk, code: str, exit_code: int, outcome: str
) -> None:
    model = desk.script({"error": {"code": code}})
    failed = desk.run("run", "-m", model, "--json", "hi")
    assert failed.code == exit_code
    assert failed.document["outcome"] == outcome
    assert failed.document["error"]["code"] == code
    words = ["perdure", "run", "--model", model, "--session", failed.document["session"], "hi"]
    assert shlex.split(failed.last_words) == words


@pytest.mark.spec("CM-01")
@pytest.mark.parametrize(
    ("model", "library", "extra"),
    [
        ("openai:x", "openai", "openai"),
        ("anthropic:x", "pydantic_ai", "anthropic"),
        ("local:smollm2", "xllamacpp", "local"),
    ],
)
def test_a_missing_extra_is_said_before_a_session_is_made(
    desk: Desk, model: str, library: str, extra: str
) -> None:
    (desk.home / "sitecustomize.py").write_text(f"import sys\nsys.modules[{library!r}] = None\n")
    desk.env["PYTHONPATH"] = f"{desk.home}:{desk.env['PYTHONPATH']}"
    for words in (("run", "-m", model, "-s", "a", "hi"), ("models", "check", model)):
        ended = desk.run(*words, "--json")
        assert ended.code == 2
        error = ended.document["error"]
        assert error["code"] == "missing_extra"
        assert library in error["message"]
        assert f"pip install 'perdure[{extra}]'" in error["hint"]
    assert not desk.store.exists()


@pytest.mark.spec("CM-10")
def test_after_a_failed_input_the_last_line_gives_it_again(desk: Desk) -> None:
    prompt = "-it's\n\u202e$HOME `x`"
    model = desk.script({"error": {"code": "auth"}})
    failed = desk.run("run", "-m", model, "-s", "a b", "--no-tools", "--", prompt)
    assert failed.code == 4
    assert failed.last_words.startswith("perdure run --model ")
    desk.script({"when": prompt, "text": "Now it works."})
    again = desk.shell(failed.last_words)
    assert (again.code, again.out) == (0, "Now it works.\n")


@pytest.mark.spec("CM-10")
def test_after_a_failed_resume_the_last_line_gives_the_prompt_again(desk: Desk) -> None:
    model = desk.script(SLEEP, {"error": {"code": "auth"}}, HELLO)
    begun = desk.fifo("begun")
    child = desk.start("run", "-m", model, "--yes", "-s", "a", "sleep")
    assert begun() == "begun\n"
    child.tell(signal.SIGKILL)
    child.end()
    failed = desk.run("resume", "-s", "a")
    assert failed.code == 4
    assert failed.last_words == "perdure run --session a sleep"


@pytest.mark.deep
@pytest.mark.timeout(60)
@pytest.mark.spec("CM-20")
def test_an_unreachable_provider_ends_within_the_retry_budget(desk: Desk) -> None:
    desk.config('[providers.openai-compatible]\nbase_url = "http://127.0.0.1:9/v1"\n')
    model = "openai-compatible:any"
    failed = desk.run("run", "-m", model, "--no-tools", "--json", "hi", wait_s=50)
    assert failed.code == 4
    assert failed.document["error"]["code"] == "network"


@pytest.mark.spec("CM-21")
def test_resume_accepts_nothing_drives_what_is_live_and_prints_its_answer(desk: Desk) -> None:
    model = desk.script(SLEEP, HELLO)
    begun = desk.fifo("begun")
    child = desk.start("run", "-m", model, "--yes", "-s", "a", "sleep")
    assert begun() == "begun\n"
    child.tell(signal.SIGKILL)
    child.end()
    resumed = desk.run("resume", "--yes")
    assert resumed.code == 0
    assert resumed.out == "Hello there.\n"
    assert resumed.err.index("was interrupted") < resumed.err.index("interrupted, an error")
    nothing = desk.run("resume", "-s", "a")
    assert (nothing.code, nothing.out) == (0, "")
    assert "nothing was left to do" in nothing.err


@pytest.mark.spec("CM-21")
def test_resume_offers_a_list_on_a_terminal(desk: Desk) -> None:
    desk.make("first", "second")
    code, shown = desk.on_terminal("resume", typed="2\n")
    assert code == 0
    assert "1 second" in shown
    assert "nothing was left to do in 'first'" in shown


@pytest.mark.spec("CM-10")
@pytest.mark.spec("CM-01")
def test_a_timeout_suspends_and_the_last_line_continues(desk: Desk) -> None:
    model = desk.script(SLEEP, HELLO)
    begun = desk.fifo("begun")
    child = desk.start(
        "run", "-m", model, "-s", "a b'c", "--allow", "shell", "--timeout", "1.5", "sleep"
    )
    assert begun() == "begun\n"
    ended = child.end()
    assert ended.code == 5
    words = ["perdure", "resume", "--allow", "shell", "--session", "a b'c"]
    assert shlex.split(ended.last_words) == words
    again = desk.shell(ended.last_words)
    assert (again.code, again.out) == (0, "Hello there.\n")


@pytest.mark.spec("CM-10")
@pytest.mark.spec("CM-01")
@pytest.mark.spec("CM-08")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_closes_cleanly_and_says_how_to_go_on(
    desk: Desk, number: signal.Signals, code: int
) -> None:
    model = desk.script(SLEEP, HELLO)
    begun = desk.fifo("begun")
    child = desk.start("run", "-m", model, "-s", "a", "--yes", "--json-events", "sleep")
    assert begun() == "begun\n"
    child.tell(number)
    ended = child.end()
    assert ended.code == code
    assert [event["type"] for event in ended.events][-2:] == ["signal", "result"]
    assert ended.events[-1]["result"]["exit_code"] == code
    inspected = desk.run("inspect", "-s", "a", "--json").document["data"]
    assert inspected["state"] == "suspended"
    assert {task["is_marked"] for task in inspected["live"]} == {False}
    again = desk.shell(ended.last_words)
    assert (again.code, again.out) == (0, "Hello there.\n")


@pytest.mark.spec("CM-08")
def test_ctrl_c_twice_leaves_now_with_the_store_intact(desk: Desk) -> None:
    stubborn = "trap '' TERM; echo begun > begun; sleep 4"
    reply = {"when": "go", "calls": [{"name": "shell", "args": {"command": stubborn}}]}
    begun = desk.fifo("begun")
    child = desk.start("run", "-m", desk.script(reply, HELLO), "--yes", "-s", "a", "go")
    assert begun() == "begun\n"
    child.tell(signal.SIGINT)
    child.until("closing")
    pressed = time.monotonic()
    child.tell(signal.SIGINT)
    ended = child.end()
    assert time.monotonic() - pressed < 0.5
    assert ended.code == 130
    assert ended.last_words == "perdure resume --yes --session a"
    inspected = desk.run("inspect", "-s", "a", "--json").document["data"]
    assert inspected["state"] == "suspended"
    assert [task["status"] for task in inspected["live"]] == ["running", "pending"]


@pytest.mark.spec("CM-08")
def test_ctrl_c_on_a_terminal_pauses_and_the_command_under_it_ends_by_our_hand(desk: Desk) -> None:
    model = desk.script(SLEEP, HELLO)
    begun = desk.fifo("begun")
    terminal = desk.terminal("run", "-m", model, "-s", "a", "--yes", "--color", "never", "sleep")
    assert begun() == "begun\n"
    terminal.type("\x03")
    code, shown = terminal.end()
    assert code == 130
    assert shown.rstrip().endswith("perdure resume --yes --session a")
    code, shown = desk.on_terminal("resume", "--yes", "--session", "a", "--color", "never")
    assert code == 0
    assert shown.replace("\r\n", "\n").endswith("Hello there.\n")


@pytest.mark.spec("CM-09")
@pytest.mark.spec("CM-01")
def test_a_closed_or_full_output_ends_printing_not_the_store(desk: Desk) -> None:
    model = desk.script({**HELLO, "text": "Hello there.\n" * 20_000})
    line = f"perdure run -m {shlex.quote(model)} -s a hi"
    closed = desk.shell(f"{line} | head -1; exit ${{PIPESTATUS[0]}}")
    assert closed.code == 141
    assert closed.out == "Hello there.\n"
    full = desk.shell(f"{line} > /dev/full")
    assert full.code == 141
    for ended in (closed, full):
        assert "Traceback" not in ended.err
        assert "defect" not in ended.err
    assert desk.run("inspect", "-s", "a", "--json").document["data"]["state"] == "idle"


@pytest.mark.spec("CM-06")
def test_colour_is_for_terminals_and_words_are_the_same(desk: Desk) -> None:
    model = desk.script(LOOK, HELLO)
    words = ("run", "--no-session", "-m", model, "look")
    _, coloured = desk.on_terminal(*words)
    assert "\x1b[" in coloured
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        _, plain = desk.on_terminal(*words, **env)
        assert "\x1b" not in plain
    _, never = desk.on_terminal(*words, "--color", "never")
    assert "\x1b" not in never
    assert without_colour(coloured) == never
    piped = desk.run(*words, "--color", "always")
    assert "\x1b[" in piped.err
    assert desk.run(*words, "--color", "always", "--json").err.count("\x1b") == 0
    assert desk.run(*words, "--quiet").err == ""


@pytest.mark.spec("SX-03")
def test_nothing_a_model_or_tool_says_acts_on_the_terminal(desk: Desk) -> None:
    evil = "\x1b]0;title\x07\x1b[31mred\x9b2J\rover\u202eright\x08"
    call = {"name": "list\x1b[2J", "args": {"path": evil}}
    model = desk.script(
        {"when": "look", "calls": [call]},
        {"text": evil, "chunk": 1, "delayMs": 2},
    )
    code, shown = desk.on_terminal("run", "--no-session", "-m", model, "--color", "never", "look")
    assert code == 0
    clean = shown.replace("\r\n", "\n")
    assert not set(clean) & set("\x1b\x07\x08\r\x9b\u202e")
    assert "\u241b[31mred" in clean


@pytest.mark.spec("CM-14")
def test_the_common_options_choose_store_and_conversation(desk: Desk) -> None:
    model = desk.script(HELLO)
    url = f"sqlite:{desk.home}/other.db"
    answered = desk.run("run", "--store", url, "-m", model, "-s", "x", "--json", "hi").document
    assert not desk.store.exists()
    root = str(answered["conversation"])
    words = ("run", "--store", url, "-s", "x", "--conversation")
    assert desk.run(*words, root, "again").out == "Hello there.\n"
    absent = desk.run(*words, "999", "--json", "again")
    assert absent.code == 3
    assert absent.document["error"]["code"] == "unknown_target"
    assert "other.db" in desk.run("inspect", "--store", f"{url}x", "-s", "x").err


def test_a_tool_that_asks_is_held_until_a_flag_allows_it(desk: Desk) -> None:
    call = {"name": "shell", "args": {"command": "echo $((6*7)) > out"}}
    model = desk.script({"when": "go", "calls": [call]}, HELLO)
    made = desk.folder / "out"
    held = desk.run("run", "-m", model, "-s", "held", "--json", "go")
    assert held.code == 5
    assert [wait["kind"] for wait in held.document["waiting_for"]] == ["decision"]
    assert not made.exists()
    both = desk.run("run", "--no-session", "-m", model, "--yes", "--deny", "sh*", "go")
    assert "denied" in both.err
    assert not made.exists()
    allowed = desk.run("run", "-m", model, "-s", "a", "--allow", "sh*", "go")
    assert "finished" in allowed.err
    assert made.read_text() == "42\n"
    again = desk.run("run", "-m", model, "-s", "a", "--deny", "shell", "go")
    assert "denied" in again.err


def test_a_pattern_that_matches_no_tool_is_refused_with_the_nearest(desk: Desk) -> None:
    start = ("run", "-m", desk.script(HELLO), "-s", "a", "hi")
    for words, hint in (
        (("--deny", "shel"), "did you mean 'shell'?"),
        (("--allow", "serch", "--allow", "read"), "did you mean 'search'?"),
        (("--allow", "shell", "--tools", "files"), "there are: read, "),
        (("--deny", "*", "--no-tools"), "none is offered"),
    ):
        ended = desk.run(*start, *words, "--json")
        assert ended.code == 2
        error = ended.document["error"]
        assert repr(words[1]) in error["message"]
        assert error["hint"].startswith(hint)
    assert not desk.store.exists()


def test_the_answer_also_goes_into_a_file(desk: Desk) -> None:
    words = ("run", "--no-session", "-m", desk.script(HELLO), "-o", "answer.txt", "hi")
    assert desk.run(*words).out == "Hello there.\n"
    assert (desk.folder / "answer.txt").read_text() == "Hello there.\n"
    assert [file.name for file in desk.folder.iterdir()] == ["answer.txt"]


def test_an_answer_that_could_not_be_written_is_not_asked_for(desk: Desk) -> None:
    words = ("run", "-s", "a", "-m", desk.script(HELLO), "-o", "/proc/answer", "--json", "hi")
    refused = desk.run(*words)
    assert refused.code == 2
    assert "'/proc/answer' cannot be written" in refused.document["error"]["message"]
    assert not desk.store.exists()


def test_a_repeated_request_gives_the_first_answer(desk: Desk) -> None:
    model = desk.script({"text": "first"}, {"text": "second"})
    words = ("run", "-m", model, "-s", "a", "--request-id", "k1")
    assert desk.run(*words, "hi").out == "first\n"
    assert desk.run(*words, "hi").out == "first\n"
    conflict = desk.run(*words, "--json", "something else")
    assert conflict.code == 3
    assert conflict.document["error"]["code"] == "request_conflict"
    assert "give a new input a request id of its own" in conflict.document["error"]["message"]


@pytest.mark.spec("CM-02")
def test_a_slow_reader_gets_every_word(desk: Desk) -> None:
    model = desk.script({**HELLO, "text": "Hello there.\n" * 20_000})
    desk.run("run", "-m", model, "-s", "a", "hi")
    child = desk.start("context", "-s", "a", "--json")
    child.until('"command":"context"', "out")
    assert (
        child.end().document["data"]["messages"][1]["content"][0]["text"].count("Hello") == 20_000
    )


def without_colour(text: str) -> str:
    """Take the colours out."""
    for code in ("0", "1", "2", "31", "32", "33"):
        text = text.replace(f"\x1b[{code}m", "")
    return text


def test_the_script_of_these_tests_is_what_it_says(desk: Desk) -> None:
    file = Path(desk.script(HELLO).removeprefix("scripted:"))
    assert json.loads(file.read_text())["replies"] == [HELLO]
