"""Read the project's own source: what every house test looks at.

Modules are discovered, never listed, so a room that appears is held to the rules at once.
"""

import ast
import functools
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "perdure"

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Module(NamedTuple):
    """One source file, read and parsed once."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Name the file from the package down: `line/command.py`."""
        return self.path.relative_to(SRC).as_posix()

    @property
    def room(self) -> str:
        """Name the room: the folder below the package, or the module itself."""
        return Path(self.name).parts[0].removesuffix(".py")


@functools.cache
def modules() -> tuple[Module, ...]:
    """Read every module of the package."""
    return tuple(_read(path) for path in sorted(SRC.rglob("*.py")))


def _read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path, text, ast.parse(text, filename=str(path)))


def rooms() -> list[Path]:
    """List the folders that are rooms."""
    return sorted(path.parent for path in SRC.glob("*/__init__.py"))


def functions(tree: ast.AST) -> Iterator[Function]:
    """Walk every function and method."""
    return (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


def body_lines(function: Function) -> int:
    """Count a function's lines, leaving its docstring out."""
    last = function.end_lineno or function.lineno
    doc = function.body[0] if ast.get_docstring(function) else None
    return last - function.lineno + 1 - ((_last(doc) - doc.lineno + 1) if doc else 0)


def _last(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def comments(module: Module) -> Iterator[tuple[int, str]]:
    """Yield each comment with its line number."""
    with module.path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def dotted(node: ast.AST) -> str:
    """Spell a name or an attribute chain as text; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def module_id(module: Module) -> str:
    """Name a parametrised case after its module."""
    return module.name
