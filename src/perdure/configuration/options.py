"""A configuration as options of `perdure.open`; loaded with the first that is used."""

from typing import Any

from perdure.configuration.providers import provider_configs
from perdure.configuration.tables import File
from perdure.drive.limits import Limits
from perdure.kinds.permissions import Permissions
from perdure.kinds.policy import ApprovalPolicy, ApprovalRule


def options_of(file: File) -> dict[str, Any]:
    """Answer all that a file says but store, model and tools."""
    return {
        "durability": file.store.durability,
        "thinking": file.model.thinking,
        "stream_options": file.model.options,
        "providers": provider_configs(file),
        "permissions": Permissions(allow=file.approvals.allow, deny=file.approvals.deny),
        "approvals": ApprovalPolicy(
            [
                ApprovalRule(one.tool, one.decision, one.arguments or None)
                for one in file.approvals.rules
            ]
        ),
        "hook_seconds": file.limits.hook_seconds,
        "secrets": file.tools.env,
        "telemetry": file.telemetry.to,
        "budget": file.budget.budget(),
        "limits": Limits(
            generations=file.limits.generations, tools=file.limits.tools, jobs=file.limits.jobs
        ),
    }
