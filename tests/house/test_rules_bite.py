"""The rules see what they are meant to see: each is shown one offence and one innocent."""

import ast

import pytest

from tests.house.source import body_lines, functions
from tests.house.test_walls import CATCH_ALL, catches_all, is_mutable, passes_on


def value(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def handler(body: str) -> ast.ExceptHandler:
    tree = ast.parse(f"try:\n    work()\n{body}")
    return next(node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))


@pytest.mark.parametrize(
    "source", ["[]", "{}", "{1}", "[x for x in y]", "dict()", "deque()", "asyncio.Lock()"]
)
def test_a_mutable_value_is_seen(source: str) -> None:
    assert is_mutable(value(source))


@pytest.mark.parametrize(
    "source", ["()", "7", "frozenset({1})", "MappingProxyType({})", "re.compile('x')"]
)
def test_a_frozen_value_is_let_by(source: str) -> None:
    assert not is_mutable(value(source))


@pytest.mark.parametrize(
    "kinds", ["", " Exception", " BaseException as e", " (OSError, Exception)"]
)
def test_a_catch_all_is_seen(kinds: str) -> None:
    assert catches_all(handler(f"except{kinds}:\n    pass"))


def test_catching_by_name_is_let_by() -> None:
    assert not catches_all(handler("except (OSError, ValueError):\n    pass"))


@pytest.mark.parametrize("body", ["    undo()\n    raise", "    future.set_exception(error)"])
def test_an_error_that_is_passed_on_is_let_by(body: str) -> None:
    assert passes_on(handler(f"except BaseException as error:\n{body}"))


def test_an_error_that_is_raised_now_and_then_is_not_passed_on() -> None:
    assert not passes_on(handler("except Exception:\n    if last:\n        raise\n    wait()"))


@pytest.mark.parametrize("name", ["tool execute", "provider stream", "hook", "listener"])
def test_the_four_sanctioned_names_are_known(name: str) -> None:
    assert CATCH_ALL.search(f"except Exception:  # noqa: BLE001 - {name}")
    assert not CATCH_ALL.search("except Exception:  # noqa: BLE001 - just in case")


def test_a_docstring_does_not_count_as_body() -> None:
    tree = ast.parse('def f():\n    """One\n    two\n    three."""\n    return 1\n')
    assert [body_lines(function) for function in functions(tree)] == [2]
