"""Everything `Harness.open` accepts besides the storage, as one frozen object (seed 12.1)."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from perdure.drive.kind import TaskKind
from perdure.drive.limits import Limits
from perdure.errors import Rejected
from perdure.kinds.content import ContentKind
from perdure.kinds.hooks import HOOK_SECONDS, YIELDS_MAX, Hooks
from perdure.kinds.permissions import Permissions
from perdure.kinds.policy import ApprovalPolicy
from perdure.kinds.secrets import Secrets
from perdure.kinds.services import SystemPrompt
from perdure.ports import Clock, Models, ProcessHost, Randomness, Telemetry, Threads, Tool
from perdure.records.budgets import Budget
from perdure.records.settings import GenerationSettings


class HarnessOptions(Struct, frozen=True, kw_only=True):
    """Ports, tools, settings and policy of one open harness.

    `initial` supplies settings where a conversation has no value of its own (VL-29); `model_given`
    says that its model was chosen by this opening and should win over a stored one (K44).
    `budget` holds for everything ever spent in the session, and is not stored (BG-02).
    `hook_seconds` is how long a hook may take (K30); `yields_max` how often one input may be
    continued by on_yield (D01).
    """

    models: Models
    clock: Clock
    randomness: Randomness
    threads: Threads
    telemetry: Telemetry
    initial: GenerationSettings
    tools: Sequence[Tool] = ()
    processes: ProcessHost | None = None
    resources: Mapping[str, object] = {}
    permissions: Permissions = Permissions()
    approvals: ApprovalPolicy = ApprovalPolicy()
    secrets: Secrets | None = None
    system_prompt: SystemPrompt = None
    hooks: Hooks | None = None
    hook_seconds: int = HOOK_SECONDS
    yields_max: int = YIELDS_MAX
    kinds: Sequence[TaskKind] = ()
    contents: Sequence[ContentKind] = ()
    limits: Limits | None = None
    budget: Budget | None = None
    model_given: bool = False
    unknown_content: str = "refuse"
    on_error: Callable[[BaseException, int | None], None] | None = None


def registry(tools: Sequence[Tool]) -> Mapping[str, Tool]:
    """Index tools by name (KT-24).

    Raises:
        Rejected: `invariant`, for what is no tool, and for two tools of one name.
    """
    named: dict[str, Tool] = {}
    for tool in tools:
        if not isinstance(getattr(tool, "name", None), str):
            raise Rejected(
                "invariant", f"{tool!r} is no tool; put @perdure.tool above the function"
            )
        if tool.name in named:
            raise Rejected("invariant", f"two tools are named {tool.name!r}")
        named[tool.name] = tool
    return named
