"""Which calls may run: a tool's own declaration, loosened by flags of this process only (AQ-09).

`allow` and `deny` are globs over tool names; deny beats allow, and `yes` counts ask as allow. A
tool's own deny is never loosened. Nothing of this is stored but who decided, in the call's details.
"""

from fnmatch import fnmatchcase

from msgspec import Struct

from perdure.ports import Approval, Tool


class Permissions(Struct, frozen=True, kw_only=True):
    """The flags in force; `subject` says whose they are, such as `cli:alex`."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    yes: bool = False
    subject: str = "api"

    def decide(self, tool: Tool) -> tuple[Approval, str | None]:
        """Answer allow, ask or deny for a call of `tool`, and by whom when a flag decided."""
        if tool.approval == "deny":
            return "deny", None
        for pattern in self.deny:
            if fnmatchcase(tool.name, pattern):
                return "deny", f"{self.subject} --deny {pattern}"
        if tool.approval == "allow":
            return "allow", None
        for pattern in self.allow:
            if fnmatchcase(tool.name, pattern):
                return "allow", f"{self.subject} --allow {pattern}"
        if self.yes:
            return "allow", f"{self.subject} --yes"
        return "ask", None
