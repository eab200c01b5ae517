"""What the host hands to the kinds: ports, tools, settings and policy (seed 12.1)."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from perdure.drive.context import TaskContext
from perdure.errors import Rejected
from perdure.kinds.content import ContentKind
from perdure.kinds.hooks import Hooks
from perdure.kinds.ledger import Ledger
from perdure.kinds.permissions import Permissions
from perdure.kinds.policy import ApprovalPolicy
from perdure.kinds.projection import Projections
from perdure.kinds.secrets import Secrets
from perdure.line.command import Command
from perdure.ports import Clock, Models, ProcessHost, Randomness, Telemetry, Threads, Tool
from perdure.records.addresses import (
    ACTIVE_TOOLS,
    MODEL,
    RETRY,
    STREAM_OPTIONS,
    THINKING,
    TOOL_ORDER,
    ConversationValue,
    settings_record,
)
from perdure.records.codec import decode, decode_json, digest, encode
from perdure.records.entries import ModelId
from perdure.records.seqs import Seq
from perdure.records.settings import ALL_TOOLS, GenerationSettings

SystemPrompt = str | Callable[[], str | Awaitable[str]] | None
"""Text, or a function resolved for each request; never stored (GN-41)."""


SETTINGS_KEPT_MAX: Final = 256
"""Most captured settings kept in memory."""

CAPTURED: Final[tuple[tuple[str, ConversationValue[Any]], ...]] = (
    ("model", MODEL),
    ("thinking", THINKING),
    ("activeTools", ACTIVE_TOOLS),
    ("toolOrder", TOOL_ORDER),
    ("streamOptions", STREAM_OPTIONS),
    ("retry", RETRY),
)
"""The settings a conversation has values for, by stored name (D31)."""


class Services(Struct, frozen=True, kw_only=True):
    """The bundle; not a durable object."""

    session_id: str
    models: Models
    tools: Mapping[str, Tool]
    clock: Clock
    randomness: Randomness
    threads: Threads
    telemetry: Telemetry
    processes: ProcessHost | None
    resources: Mapping[str, object]
    permissions: Permissions
    policy: ApprovalPolicy
    secrets: Secrets
    initial: GenerationSettings
    system_prompt: SystemPrompt
    hooks: Hooks
    hook_seconds: int
    yields_max: int
    contents: Mapping[str, ContentKind]
    projections: Projections
    book: "SettingsBook"
    ledger: Ledger
    report: Callable[[BaseException, Seq | None], None]


class SettingsBook:
    """Captured settings by digest, and digests by what they were captured from; bounded."""

    def __init__(self) -> None:
        """Start empty."""
        self._captured: OrderedDict[str, GenerationSettings] = OrderedDict()
        self._digests: OrderedDict[tuple[bytes | None, ...], str] = OrderedDict()

    def settings(self, key: str) -> GenerationSettings | None:
        """Answer settings seen before."""
        return self._captured.get(key)

    def keep(self, key: str, settings: GenerationSettings) -> None:
        """Keep settings under their digest."""
        self._captured[key] = settings
        if len(self._captured) > SETTINGS_KEPT_MAX:
            self._captured.popitem(last=False)

    def capture(
        self, raws: tuple[bytes | None, ...], initial: GenerationSettings, tools: Iterable[str]
    ) -> str:
        """Answer the digest of the settings that six stored values and the host's make."""
        key = self._digests.get(raws)
        if key is None:
            key = self._capture(raws, initial, tools)
            self._digests[raws] = key
            if len(self._digests) > SETTINGS_KEPT_MAX:
                self._digests.popitem(last=False)
        return key

    def _capture(
        self, raws: tuple[bytes | None, ...], initial: GenerationSettings, tools: Iterable[str]
    ) -> str:
        fields: dict[str, Any] = decode_json(encode(initial))
        for (name, _), raw in zip(CAPTURED, raws, strict=True):
            if raw is not None:
                fields[name] = decode_json(raw)
        if ALL_TOOLS in fields["activeTools"]:
            fields["activeTools"] = list(tools)
        key = digest({"v": 1, "settings": fields})
        self.keep(key, decode(encode(fields), GenerationSettings))
        return key


async def capture_settings(
    tx: Command, conv_id: Seq, services: Services, *, model: ModelId | None = None
) -> str:
    """Capture current settings for a new generation, stored once by digest; answers the digest.

    Each of the six conversation values that is unset falls back to the host's initial setting
    (VL-29); `*` becomes the tools registered now (K44). `model` is one this command writes itself.
    """
    raws: list[bytes | None] = []
    for name, address in CAPTURED:
        if name == "model" and model is not None:
            raws.append(encode(model))
        else:
            raw = await tx.get_raw(address.bind(conv_id))
            raws.append(None if raw is None else bytes(raw))
    key = services.book.capture(tuple(raws), services.initial, services.tools)
    address = settings_record(key)
    if await tx.get_raw(address) is None:
        tx.set_value(address, services.book.settings(key))
    return key


async def captured(ctx: TaskContext, services: Services, key: str) -> GenerationSettings:
    """Read captured settings back."""
    known = services.book.settings(key)
    if known is not None:
        return known
    raw = await ctx.line.value(settings_record(key).address())
    if raw is None:
        raise Rejected("invariant", f"captured settings {key} are missing from the store")
    settings = decode(raw, GenerationSettings)
    services.book.keep(key, settings)
    return settings
