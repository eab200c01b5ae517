"""Every number that an option takes is a number that can be meant, or the command refuses it."""

from collections.abc import Iterator

import click
import pytest

from perdure.cli.main import cli, run_command
from perdure.cli.surface import Surface

NEVER = (
    "nan",
    "-nan",
    "inf",
    "-inf",
    "1e999",
    "-1",
    "-0.5",
    "1e-999",
    "9" * 5_000,
    "0x10",
    "",
    " ",
)


def commands(
    at: click.Command, ctx: click.Context, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(at, click.Group):
        for name in at.list_commands(ctx):
            inner = at.get_command(ctx, name)
            assert inner is not None
            yield from commands(inner, click.Context(inner, ctx), (*path, name))
    else:
        yield path, at


def numeric_options() -> list[tuple[tuple[str, ...], str]]:
    ctx = click.Context(cli, obj=Surface())
    return [
        (path, option.opts[-1])
        for path, command in commands(cli, ctx, ())
        for option in command.params
        if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    ]


def test_the_options_are_found() -> None:
    names = {name for _, name in numeric_options()}
    assert {"--timeout", "--conversation", "--as-of", "--limit"} <= names


@pytest.mark.parametrize("value", NEVER, ids=lambda value: value[:9])
def test_a_number_that_cannot_be_meant_is_a_usage_error(
    value: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for path, option in numeric_options():
        refuses(path, option, value, capfd)


@pytest.mark.parametrize("value", [2**53, 2**63, 2**64])
def test_an_id_above_the_last_seq_is_a_usage_error(
    value: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for path, option in numeric_options():
        if option in ("--conversation", "--as-of"):
            refuses(path, option, str(value), capfd)


def refuses(
    path: tuple[str, ...], option: str, value: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*path, f"{option}={value}"]) == 2
    said = capfd.readouterr().err
    assert option in said
    assert "Invalid value" in said
