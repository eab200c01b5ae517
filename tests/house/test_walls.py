"""What no room may do, whatever its card says.

The direction of imports is import-linter's (`pyproject.toml`); the fence around time,
chance and printing is ruff's. What neither of them can see is here.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import (
    FUNCTIONS,
    SRC,
    Module,
    comments,
    dotted,
    functions,
    module_id,
    modules,
    rooms,
)

ROOM_CARD = ("May touch:", "May not touch:")
ROOM_CARD_WORDS_MAX = 100

NOUNS = (["perdure", "errors"], ["perdure", "ports"], ["perdure", "records"])
"""What every room may name, the testing kit above all."""

LOADERS = {"importlib.import_module", "import_module", "__import__"}
LOADS_BY_NAME = {"opening.py", "cli"}
"""The composition root's `load`, and the lazy group of the command line (K06)."""

SYNCS = {"fsync", "fdatasync"}
MAY_SYNC = {"storage", "hosts"}

CATCH_ALL = re.compile(
    r"# .*\b(tool execute|provider (?:stream|poll|cancel)|hook|listener|foreign words)\b"
)
CATCH_ALLS_MAX = 10
"""The four sorts of K54, foreign code that must not take the session with it; a provider is asked
in three ways (stream, poll, cancel), a tool runs in-process or as a command, listeners are two.
The words of an exception are its own code too: `errors.text_of` asks for them, once for all."""

FAULTS = re.compile(r"noqa: BLE001 - .*\bfaults the session\b")
FAULTS_MAX = 3
MAY_FAULT = {"line", "drive"}
"""Where an exception nobody expected becomes a fault (FT-01, TK-18): it is said to everyone who
drives or commits, so it is passed on and not swallowed."""

MAY_END_IN_A_REPORT = {"cli", "testing", "web"}
"""The command line turns a defect into exit code 1 and a report, the server into an answer 500 and
a report; the kit records what it saw."""

MUTABLE_CALLS = {
    "bytearray", "dict", "list", "set", "collections.Counter", "collections.OrderedDict",
    "collections.defaultdict", "collections.deque", "Counter", "OrderedDict", "defaultdict",
    "deque", "weakref.WeakKeyDictionary", "weakref.WeakValueDictionary", "WeakKeyDictionary",
    "WeakValueDictionary", "itertools.count", "count", "threading.Lock", "threading.local",
    "asyncio.Lock", "asyncio.Queue",
}  # fmt: skip
MUTABLE_LITERALS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)

OPEN_MARKER = re.compile(r"\b(TODO|FIXME|XXX?|HACK)\b")
SUPPRESSION = re.compile(r"#\s*(type|pyright):\s*ignore")
SUPPRESSION_NAMES_ITS_RULE = re.compile(r"#\s*(type|pyright):\s*ignore\[[\w, -]+\]\s*#?\s*\S+")
SUPPRESSIONS_PER_THOUSAND_LINES = 1


@pytest.mark.parametrize("room", rooms(), ids=lambda room: room.name)
def test_room_states_what_it_may_touch(room: Path) -> None:
    card = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    missing = [line for line in ROOM_CARD if line not in card]
    assert not missing, f"{room.name}/__init__.py opens with its card: {missing}"
    assert len(card.split()) <= ROOM_CARD_WORDS_MAX


@pytest.mark.parametrize("room", rooms(), ids=lambda room: room.name)
def test_room_opens_on_its_own_modules_only(room: Path) -> None:
    """The contracts look at a room's modules; its `__init__` may add nothing foreign."""
    for node in ast.parse((room / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[:2] in (["perdure", room.name], *NOUNS)
        assert not isinstance(node, ast.Import)


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_no_import_is_hidden_from_the_reader(module: Module) -> None:
    assert "TYPE_CHECKING" not in module.text
    for function in functions(module.tree):
        for node in ast.walk(function):
            late = isinstance(node, ast.Import | ast.ImportFrom)
            assert not late, f"late import in {function.name}"


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_only_the_composition_root_loads_by_name(module: Module) -> None:
    loads = [node.lineno for node in calls(module.tree) if dotted(node.func) in LOADERS]
    assert not loads or LOADS_BY_NAME & {module.name, module.room}, loads


def test_each_sanctioned_loader_has_one_place() -> None:
    places = [
        module.name
        for module in modules()
        for node in calls(module.tree)
        if dotted(node.func) in LOADERS
    ]
    assert len(places) <= len(LOADS_BY_NAME), places


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_nothing_mutable_lives_at_module_level(module: Module) -> None:
    for statement in module.tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            names = [dotted(target) for target in assigned(statement)]
            if names != ["__all__"]:
                assert not is_mutable(statement.value), names


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_no_global_statement(module: Module) -> None:
    assert not [node for node in ast.walk(module.tree) if isinstance(node, ast.Global)]


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_only_storage_and_hosts_sync_files(module: Module) -> None:
    used = [last_word(node) for node in ast.walk(module.tree) if last_word(node) in SYNCS]
    assert not used or module.room in MAY_SYNC, used


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_a_catch_all_is_sanctioned_or_passes_the_error_on(module: Module) -> None:
    for number, line in catch_all_lines(module):
        faults = FAULTS.search(line) and module.room in MAY_FAULT
        known = faults or CATCH_ALL.search(line)
        assert known, (
            f"line {number}: catch what can happen by name. The places that must catch everything "
            "say so: `# noqa: BLE001 - tool execute` (or provider stream, hook, listener), and in "
            "line/ and drive/ `# noqa: BLE001 - … faults the session`"
        )


def test_catch_alls_are_few() -> None:
    lines = [line for module in modules() for _, line in catch_all_lines(module)]
    faults = [line for line in lines if FAULTS.search(line)]
    assert len(faults) <= FAULTS_MAX
    assert len(lines) - len(faults) <= CATCH_ALLS_MAX


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_no_open_marker(module: Module) -> None:
    open_ends = [number for number, text in comments(module) if OPEN_MARKER.search(text)]
    assert not open_ends, "an open end is an issue, or it is done"


def test_type_suppressions_are_few_and_give_a_reason() -> None:
    found = [
        (f"{module.name}:{number}", text)
        for module in modules()
        for number, text in comments(module)
        if SUPPRESSION.search(text)
    ]
    lines = sum(module.text.count("\n") for module in modules())
    assert len(found) <= max(3, SUPPRESSIONS_PER_THOUSAND_LINES * lines / 1000), found
    assert [place for place, text in found if not SUPPRESSION_NAMES_ITS_RULE.search(text)] == []


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_importing_reads_no_environment(module: Module) -> None:
    for statement in module.tree.body:
        if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            reads = [dotted(node) for node in ast.walk(statement)]
            assert not {"os.environ", "os.getenv", "environ", "getenv"} & set(reads)


def test_the_package_is_typed() -> None:
    assert (SRC / "py.typed").exists()


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Walk every call."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def last_word(node: ast.AST) -> str:
    """Name an attribute or a name by its last word."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def assigned(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    """List what a statement assigns to."""
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def is_mutable(value: ast.expr) -> bool:
    """Tell whether a module-level value could be changed by anyone."""
    if isinstance(value, ast.Call):
        return dotted(value.func) in MUTABLE_CALLS
    return isinstance(value, MUTABLE_LITERALS)


def catch_alls(module: Module) -> Iterator[ast.ExceptHandler]:
    """Walk the handlers that catch everything and let nobody know."""
    if module.room in MAY_END_IN_A_REPORT:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and catches_all(node) and not passes_on(node):
            yield node


def catch_all_lines(module: Module) -> list[tuple[int, str]]:
    """List the lines that open such a handler."""
    lines = module.text.splitlines()
    return [(handler.lineno, lines[handler.lineno - 1]) for handler in catch_alls(module)]


def catches_all(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler names `Exception`, `BaseException`, or nothing."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or dotted(kind) in {"Exception", "BaseException"} for kind in kinds)


def passes_on(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler ends by raising, or hands the error to a waiting future."""
    return isinstance(handler.body[-1], ast.Raise) or any(
        isinstance(node, ast.Attribute) and node.attr == "set_exception"
        for node in ast.walk(handler)
    )
