"""Flags of one process over its calls: which run without a question, and which never (AQ-09).

`allow` and `deny` are globs over tool names; deny beats allow, and `yes` counts ask as allow. They
loosen no deny, and nothing of them is stored but who decided, in the call's state.
"""

from fnmatch import fnmatchcase

from msgspec import Struct


class Permissions(Struct, frozen=True, kw_only=True):
    """The flags in force; `subject` says whose they are, such as `cli:alex`."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    yes: bool = False
    subject: str = "api"

    def denied_by(self, tool: str) -> str | None:
        """Name the flag that refuses a tool's calls, None when none does."""
        for pattern in self.deny:
            if fnmatchcase(tool, pattern):
                return f"{self.subject} --deny {pattern}"
        return None

    def allowed_by(self, tool: str) -> str | None:
        """Name the flag that lets a call run that would ask, None when none does."""
        for pattern in self.allow:
            if fnmatchcase(tool, pattern):
                return f"{self.subject} --allow {pattern}"
        return f"{self.subject} --yes" if self.yes else None
