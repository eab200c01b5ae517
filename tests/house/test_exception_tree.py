"""The map of exceptions at the top of `errors.py` is the territory."""

import ast
import importlib
import re

from tests.house.source import SRC, dotted, modules

DRAWN = re.compile(r"^(?P<rails>[│ ]*)(?P<joint>[├└]── )?(?P<name>[A-Z]\w+)")
RAIL = 4


def drawn_tree() -> dict[str, str]:
    """Read the drawing: each exception and the one it hangs on."""
    text = ast.get_docstring(ast.parse((SRC / "errors.py").read_text())) or ""
    parents: dict[str, str] = {}
    stack: list[str] = []
    for line in text.splitlines():
        match = DRAWN.match(line)
        if match and (match["joint"] or match["name"] == "PerdureError"):
            depth = len(match["rails"]) // RAIL + 1 if match["joint"] else 0
            stack[depth:] = [match["name"]]
            parents[match["name"]] = stack[depth - 1] if depth else "Exception"
    return parents


def real_tree() -> dict[str, str]:
    """Ask the classes."""
    errors = importlib.import_module("perdure.errors")
    return {
        name: value.__bases__[0].__name__
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }


def test_the_drawn_tree_is_the_real_one() -> None:
    assert drawn_tree() == real_tree()


def test_no_other_room_adds_to_the_tree() -> None:
    ours = set(real_tree())
    strays = [
        f"{module.name}:{node.name}"
        for module in modules()
        if module.name != "errors.py"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and ours & {dotted(base) for base in node.bases}
    ]
    assert not strays, "the whole tree stands in errors.py"
