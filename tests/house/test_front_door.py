"""The front door: explicit, sorted, documented, few."""

import ast
import importlib
import inspect

from tests.house.source import SRC

DOOR = SRC / "__init__.py"
NAMES_MAX = 60


def door() -> ast.Module:
    """Read the front door; while there is none it is empty."""
    return ast.parse(DOOR.read_text(encoding="utf-8") if DOOR.exists() else "")


def exported() -> dict[str, str]:
    """Read which names the door re-exports, and from where."""
    return {
        alias.asname or alias.name: node.module or ""
        for node in door().body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def declared() -> list[str]:
    """Read `__all__` as it is written, or nothing while there is none."""
    for node in door().body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def shelf(name: str) -> tuple[int, str]:
    """Sort as ruff does: constants, then classes, then the rest."""
    if name.isupper():
        return 0, name
    return (1 if name[0].isupper() else 2), name


def test_the_door_is_a_sorted_list_without_repeats() -> None:
    names = declared()
    assert names == sorted(set(names), key=shelf)
    assert len(names) <= NAMES_MAX


def test_the_list_and_the_imports_agree() -> None:
    public = {name for name in exported() if not name.startswith("_")}
    own = {"__version__"}
    if declared():
        assert set(declared()) - own == public


def test_the_door_only_re_exports() -> None:
    plain = ast.Expr | ast.ImportFrom | ast.Import | ast.Assign | ast.AnnAssign
    assert all(isinstance(node, plain) for node in door().body), "the door holds no logic"
    assert all(module.startswith("perdure.") for module in exported().values())


def test_each_name_opens_and_is_documented() -> None:
    package = importlib.import_module("perdure")
    for name in declared():
        value = getattr(package, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name
