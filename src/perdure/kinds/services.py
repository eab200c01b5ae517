"""What the host hands to the kinds: ports, tools, settings and policy (seed 12.1)."""

from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from perdure.drive.context import TaskContext
from perdure.drive.kind import TaskKind
from perdure.errors import Rejected
from perdure.kinds.content import ContentKind
from perdure.kinds.permissions import Permissions
from perdure.kinds.projection import Projections
from perdure.line.command import Command
from perdure.ports import Clock, Models, ProcessHost, Randomness, Telemetry, Threads, Tool
from perdure.records.addresses import (
    ACTIVE_TOOLS,
    MODEL,
    RETRY,
    STREAM_OPTIONS,
    THINKING,
    TOOL_ORDER,
    settings_record,
)
from perdure.records.codec import decode, decode_json, digest, encode
from perdure.records.entries import ModelId
from perdure.records.seqs import Seq
from perdure.records.settings import ALL_TOOLS, GenerationSettings

SystemPrompt = str | Callable[[], str | Awaitable[str]] | None
"""Text, or a function resolved for each request; never stored (GN-41)."""


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
    initial: GenerationSettings
    system_prompt: SystemPrompt
    contents: Mapping[str, ContentKind]
    projections: Projections
    report: Callable[[BaseException, Seq | None], None]
    extra_kinds: tuple[TaskKind, ...] = ()


async def capture_settings(
    tx: Command, conv_id: Seq, services: Services, *, model: ModelId | None = None
) -> str:
    """Capture current settings for a new generation, stored once by digest; answers the digest.

    Each of the six conversation values that is unset falls back to the host's initial setting
    (VL-29); `*` becomes the tools registered now (K44).
    """
    initial = services.initial
    fields: dict[str, object] = decode_json(encode(initial))
    for name, address in (
        ("model", MODEL),
        ("thinking", THINKING),
        ("activeTools", ACTIVE_TOOLS),
        ("toolOrder", TOOL_ORDER),
        ("streamOptions", STREAM_OPTIONS),
        ("retry", RETRY),
    ):
        if name == "model" and model is not None:
            fields[name] = decode_json(encode(model))
            continue
        raw = await tx.get_raw(address.bind(conv_id))
        if raw is not None:
            fields[name] = decode_json(raw)
    names = fields["activeTools"]
    if isinstance(names, list) and ALL_TOOLS in names:
        fields["activeTools"] = list(services.tools)
    key = digest({"v": 1, "settings": fields})  # pyright: ignore[reportArgumentType] - decoded JSON
    address = settings_record(key)
    if await tx.get_raw(address) is None:
        settings = decode(encode(fields), GenerationSettings)
        tx.set_value(address, settings)
    return key


async def captured(ctx: TaskContext, key: str) -> GenerationSettings:
    """Read captured settings back."""
    raw = await ctx.line.value(settings_record(key).address())
    if raw is None:
        raise Rejected("invariant", f"captured settings {key} are missing from the store")
    return decode(raw, GenerationSettings)
