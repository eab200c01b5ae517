"""Words on a terminal: what is shown, lined up, and how a defect ends."""

import re
from pathlib import Path

import click
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.cli.commands.checkups import has_wal_fault, in_range
from perdure.cli.commands.schema import schema_text as shipped
from perdure.cli.commands.schemas import SCHEMAS, schema_of, schema_text
from perdure.cli.endings import CODES, MEANINGS
from perdure.cli.main import COMMANDS, cli, load, run_command
from perdure.cli.spending import spent_of, spent_words
from perdure.cli.tables import table, width
from perdure.cli.visible import one_line, visible
from perdure.providers.script import call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.codec import decode_json, encode
from perdure.records.usage import TokenSum, UsageTotals

ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


@pytest.mark.spec("SX-03")
@given(st.text(st.characters()))
def test_nothing_that_acts_on_a_terminal_is_left(text: str) -> None:
    shown = visible(text)
    assert not ACTING.search(shown)
    shown.encode()
    assert visible("".join(map(visible, text))) == shown
    assert "\n" not in one_line(text)


@pytest.mark.spec("SX-03")
def test_plain_text_stays_as_it_is() -> None:
    text = "Grüße,\t漢字 👩‍👩‍👧 \\x1b\n"
    assert visible(text) == text
    assert visible("\x1b]8;;http://x\x07\r\x9b") == "\u241b]8;;http://x\u2407\u240d\\u009b"


def test_columns_line_up_whatever_the_letters() -> None:
    rows = [("漢字", 1_000), ("é", None), ("a\x1b[2J", 3)]
    lines = table(("name", "n"), rows).splitlines()
    ends = ("n", "1,000", "-", "3")
    before = [line.removesuffix(end) for line, end in zip(lines, ends, strict=True)]
    assert [width(one) for one in before] == [len("a␛[2J") + 2] * 4


def test_an_unknown_part_is_never_added_as_zero() -> None:
    known = UsageTotals(reports=2, input=TokenSum(tokens=5), output=TokenSum(tokens=0))
    spent = spent_of(known)
    assert spent is not None
    assert (spent.input, spent.output) == (5, 0)
    partly = spent_of(known + UsageTotals(reports=1, output=TokenSum(unknown_reports=1)))
    assert partly is not None
    assert (partly.input, partly.output) == (5, None)
    missing = spent_of(known + UsageTotals(unknown_attempts=1))
    assert missing is not None
    assert missing.input is None
    assert "1 requests unknown" in spent_words(missing)
    assert spent_of(UsageTotals()) is None


@pytest.mark.spec("CM-01")
def test_a_defect_ends_with_one_and_names_a_report(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = load("perdure.cli.commands.schema")

    def broken(_: str) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(module, "schema_text", broken)
    assert run_command(["schema", "config"]) == 1
    said = capfd.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    report = Path(said.err.split("the report is in ")[1].strip())
    assert "nobody thought of this" in report.read_text()
    assert report.stat().st_mode & 0o777 == 0o600
    report.unlink()


@pytest.mark.spec("CM-01")
def test_every_outcome_has_a_code_and_a_meaning() -> None:
    assert set(CODES) == set(MEANINGS)
    assert sorted(set(CODES.values())) == [*range(10), 129, 130, 141, 143]


@pytest.mark.spec("CM-12")
@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_command_is_there_documented_and_takes_json(name: str) -> None:
    context = cli.make_context("perdure", ["help"], resilient_parsing=True)
    command = cli.get_command(context, name)
    assert command is not None
    assert command.help
    inner = list(getattr(command, "commands", {}).values()) or [command]
    for one in inner:
        names = {option for param in one.params for option in param.opts}
        assert {"--json", "--color", "--quiet"} <= names
        assert all(param.help for param in one.params if isinstance(param, click.Option))


@pytest.mark.spec("CM-12")
def test_an_option_before_the_command_is_told_its_place(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["--quiet", "sessions"]) == CODES["usage"]
    assert "options stand after the command" in capfd.readouterr().err


@pytest.mark.spec("CM-05")
@pytest.mark.parametrize("name", list(SCHEMAS))
def test_the_shipped_schema_is_that_of_the_structs(name: str) -> None:
    renew = "python -m perdure.cli.commands.schemas"
    assert shipped(name) == schema_text(name), f"write it anew: {renew}"
    jsonschema.Draft202012Validator.check_schema(schema_of(name))


@pytest.mark.spec("CM-05")
async def test_every_commit_fits_the_schema_of_a_record() -> None:
    models = ScriptedModels([say("Let me look.", call("nothing")), say("Done.")])
    validator = jsonschema.Draft202012Validator(schema_of("record"))
    async with perdure.open("memory:", session="a", model="scripted:x", models=models) as harness:
        root = await harness.root()
        await root.prompt("hi")
        commits = await harness.commits(limit=1_000)
    assert len(commits) > 4
    for commit in commits:
        validator.validate(decode_json(encode(commit)))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**decode_json(encode(commits[0])), "w": [{"k": "nonsense"}]})


def test_versions_are_compared_as_numbers() -> None:
    assert in_range("8.10.1", ">=8.2,<9")
    assert not in_range("9.0", ">=8.2,<9")
    assert not in_range("8.1", ">=8.2,<9")
    faulty = [(3, 40, 1), (3, 44, 5), (3, 50, 6), (3, 51, 2)]
    sound = [(3, 44, 6), (3, 50, 7), (3, 51, 3), (3, 52, 0)]
    assert all(map(has_wal_fault, faulty))
    assert not any(map(has_wal_fault, sound))
