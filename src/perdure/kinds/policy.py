"""Approval policy: a host's rules over tool names and arguments (AQ-01 to AQ-03).

Of all rules that match, deny beats ask and ask beats allow, whatever their order; without a match
the tool's own declaration counts, and a tool's own deny is never loosened.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, get_args

from msgspec import Struct

from perdure.errors import Rejected
from perdure.kinds.shell_text import runs_one_command
from perdure.ports import Approval
from perdure.records.codec import canonical
from perdure.records.strict_json import JsonValue

SHELL: Final = "shell"
COMMAND: Final = "command"
"""The tool and the argument whose text is a whole shell command (AQ-03)."""

STRONGEST_FIRST: Final[tuple[Approval, ...]] = ("deny", "ask", "allow")


class ApprovalRule(Struct, frozen=True):
    """One rule: `tool` is a name or glob, `arguments` globs over the text of named arguments.

    Raises:
        Rejected: `invariant`, for a decision that is none of allow, ask and deny.
    """

    tool: str
    decision: Approval
    arguments: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Refuse what could never decide."""
        if self.decision not in get_args(Approval):
            raise Rejected(
                "invariant",
                f"the decision of the rule for {self.tool!r} is {self.decision!r}; "
                f"it is one of {', '.join(get_args(Approval))}",
            )

    def __str__(self) -> str:
        """Say the rule in one line."""
        return said(self.tool, self.arguments)

    def matches(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Say whether the rule speaks of a call."""
        if not fnmatchcase(tool, self.tool):
            return False
        return covers(tool, self.arguments or {}, args, allows=self.decision == "allow")


class ApprovalPolicy(Struct, frozen=True):
    """Rules in any order."""

    rules: Sequence[ApprovalRule] = ()

    def decide(self, tool: str, args: Mapping[str, Any]) -> ApprovalRule | None:
        """Answer the strongest rule that matches, None when none does."""
        matching = [rule for rule in self.rules if rule.matches(tool, args)]
        for decision in STRONGEST_FIRST:
            for rule in matching:
                if rule.decision == decision:
                    return rule
        return None


def covers(tool: str, globs: Mapping[str, str], args: Mapping[str, Any], *, allows: bool) -> bool:
    """Say whether every glob matches its argument; one that is absent matches none.

    A command that runs more than its first words say matches no glob that allows (AQ-03).
    """
    for name, glob in globs.items():
        if name not in args or not fnmatchcase(text_of_argument(args[name]), glob):
            return False
        is_command = tool == SHELL and name == COMMAND
        if allows and is_command and not runs_one_command(text_of_argument(args[name])):
            return False
    return True


def text_of_argument(value: JsonValue) -> str:
    """Answer what a glob is compared with: a text as it is, anything else as canonical JSON."""
    return value if isinstance(value, str) else canonical(value).decode()


def said(tool: str, globs: Mapping[str, str] | None) -> str:
    """Say what a rule or grant covers, in one line."""
    if not globs:
        return tool
    return f"{tool} with " + ", ".join(f"{name} {glob!r}" for name, glob in globs.items())
