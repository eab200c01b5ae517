"""Every table and key of the file, with types, bounds, defaults and a sentence each (CG-03).

These Structs are the one description of the file: the check, the JSON Schema and the commented
file of `perdure config init` are made from them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias, get_type_hints

from msgspec import Meta, Struct

from perdure.providers.config import (
    CONNECT_TIMEOUT_MS,
    SILENCE_TIMEOUT_MS,
    ModelPrice,
)
from perdure.records.budgets import FIELDS, Budget
from perdure.records.settings import ThinkingLevel

Positive: TypeAlias = Annotated[int, Meta(gt=0)]
Amount: TypeAlias = Annotated[
    str, Meta(pattern=r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*)$")
]
Key: TypeAlias = Annotated[str, Meta(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")]
"""Where a secret is: `env:NAME` or `file:PATH`; never the secret itself (CG-07)."""

Kit: TypeAlias = Literal["files", "shell"]

MIB: Final = 1 << 20


class StoreTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where sessions are kept."""

    url: Annotated[str | None, Meta(description="memory: or sqlite:FILE")] = None
    durability: Annotated[
        Literal["power", "process"],
        Meta(description="power syncs what must survive a power cut; process syncs nothing"),
    ] = "power"


class ModelTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model that new sessions start with."""

    name: Annotated[str | None, Meta(description="provider:model")] = None
    thinking: Annotated[ThinkingLevel, Meta(description="how much the model thinks")] = "off"
    options: Annotated[
        Mapping[str, Any], Meta(description="options of the provider, such as temperature")
    ] = {}
    window: Annotated[
        Positive | None, Meta(description="context window in tokens; left out: what is known")
    ] = None


class ProviderTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One provider, by its name: [providers.openai]."""

    base_url: Annotated[str | None, Meta(description="address of its server")] = None
    key: Annotated[Key | None, Meta(description="env:NAME or file:PATH, never the key")] = None
    thinking: Annotated[bool, Meta(description="its models think, whatever is known")] = False
    images: Annotated[bool | None, Meta(description="whether its models take images")] = None
    window: Annotated[Positive | None, Meta(description="context window in tokens")] = None
    output_limit: Annotated[Positive | None, Meta(description="most output tokens")] = None
    stream_options: Annotated[bool, Meta(description="the server knows stream_options")] = True
    allow_plain_http: Annotated[bool, Meta(description="http beyond private addresses")] = False
    connect_timeout_ms: Annotated[Positive, Meta(description="longest wait for a connection")] = (
        CONNECT_TIMEOUT_MS
    )
    silence_timeout_ms: Annotated[Positive, Meta(description="longest wait for a byte")] = (
        SILENCE_TIMEOUT_MS
    )


class ToolsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the command line offers a model."""

    kits: Annotated[tuple[Kit, ...], Meta(description="toolkits")] = ("files", "shell")
    root: Annotated[
        str | None, Meta(description="folder tools work in; left out: the current one")
    ] = None
    extra_roots: Annotated[
        Mapping[str, Literal["r", "rw"]], Meta(description="further folders, readable or writable")
    ] = {}
    env: Annotated[
        tuple[str, ...], Meta(description="names of environment variables commands get")
    ] = ()


class RuleTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule over calls, by tool and arguments: [[approvals.rules]]."""

    tool: Annotated[str, Meta(description="name or glob")]
    decision: Annotated[
        Literal["allow", "ask", "deny"], Meta(description="deny beats ask, ask beats allow")
    ]
    arguments: Annotated[
        Mapping[str, str], Meta(description="globs over the text of named arguments")
    ] = {}


class ApprovalsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which calls run without a question, by tool name or glob; deny beats allow."""

    allow: Annotated[tuple[str, ...], Meta(description="tools that run unasked")] = ()
    deny: Annotated[tuple[str, ...], Meta(description="tools that never run")] = ()
    rules: Annotated[tuple[RuleTable, ...], Meta(description="rules over tool and arguments")] = ()


class BudgetTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a session may spend in its whole life; without a limit, as much as it likes."""

    cost: Annotated[Amount | None, Meta(description="decimal text above 0, in currency")] = None
    currency: Annotated[str, Meta(pattern=r"^[A-Za-z]{2,10}$", description="of cost")] = "USD"
    tokens: Annotated[Positive | None, Meta(description="input, cached and output")] = None
    turns: Annotated[Positive | None, Meta(description="replies")] = None
    seconds: Annotated[Positive | None, Meta(description="of work; waiting is none")] = None
    on_limit: Annotated[
        Literal["suspend", "fail"], Meta(description="wait behind an approval, or fail")
    ] = "suspend"
    unknown: Annotated[
        Literal["ignore", "stop"], Meta(description="stop at the first cost nobody knows")
    ] = "ignore"

    def budget(self) -> Budget | None:
        """Answer the budget; None without a limit."""
        if all(getattr(self, name) is None for name in FIELDS):
            return None
        return Budget(
            cost=self.cost,
            currency=self.currency,
            tokens=self.tokens,
            turns=self.turns,
            seconds=self.seconds,
            on_limit=self.on_limit,
            unknown=self.unknown,
        )


class LimitsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much runs at once in one process."""

    generations: Annotated[Positive, Meta(description="model requests")] = 8
    tools: Annotated[Positive, Meta(description="tool calls")] = 32
    jobs: Annotated[Positive, Meta(description="background jobs")] = 16
    hook_seconds: Annotated[Positive, Meta(description="seconds a hook may take")] = 60


class ResultsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result store of code mode."""

    enabled: Annotated[bool, Meta(description="keep results")] = True
    max_entries: Annotated[Positive, Meta(description="most results")] = 64
    max_total_bytes: Annotated[Positive, Meta(description="bytes of all results")] = 32 * MIB
    max_entry_bytes: Annotated[Positive, Meta(description="bytes of one result")] = 8 * MIB
    ttl_seconds: Annotated[Positive, Meta(description="seconds a result is kept")] = 3_600


class ArtifactsTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The artifact store of code mode."""

    enabled: Annotated[bool, Meta(description="keep artifacts")] = True
    max_entries: Annotated[Positive, Meta(description="most artifacts")] = 32
    max_total_bytes: Annotated[Positive, Meta(description="bytes of all artifacts")] = 256 * MIB
    max_entry_bytes: Annotated[Positive, Meta(description="bytes of one artifact")] = 64 * MIB
    ttl_seconds: Annotated[Positive, Meta(description="seconds an artifact is kept")] = 3_600


class InterpreterTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The interpreter of code mode."""

    enabled: Annotated[bool, Meta(description="keep the interpreter between snippets")] = True
    max_memory_mb: Annotated[Positive, Meta(description="most memory in MiB")] = 512


class CodeTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where code of a model runs."""

    backend: Annotated[
        Literal["monty", "local_unsafe", "pyodide"], Meta(description="the sandbox")
    ] = "monty"


class TelemetryTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where spans go; they carry ids, names, counts and durations only."""

    to: Annotated[
        Literal["otel", "none"] | None,
        Meta(description="otel or none; left out: the program's tracer provider, if it set one"),
    ] = None


class ServersTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tool servers; this release starts none."""

    servers: Annotated[Mapping[str, Any], Meta(max_length=0)] = {}


Unbuilt: TypeAlias = Annotated[Mapping[str, Any], Meta(max_length=0)]
"""A table whose name is known and whose keys a later release brings: it must be empty."""


class File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    store: StoreTable = StoreTable()
    model: ModelTable = ModelTable()
    providers: Mapping[str, ProviderTable] = {}
    tools: ToolsTable = ToolsTable()
    approvals: ApprovalsTable = ApprovalsTable()
    budget: BudgetTable = BudgetTable()
    limits: LimitsTable = LimitsTable()
    results: ResultsTable = ResultsTable()
    artifacts: ArtifactsTable = ArtifactsTable()
    session: InterpreterTable = InterpreterTable()
    code: CodeTable = CodeTable()
    cli: Unbuilt = {}
    mcp: ServersTable = ServersTable()
    serve: Unbuilt = {}
    prices: Mapping[str, ModelPrice] = {}
    evidence: Unbuilt = {}
    telemetry: TelemetryTable = TelemetryTable()


UNBUILT: Final = frozenset(
    name for name, hint in get_type_hints(File, include_extras=True).items() if hint == Unbuilt
)
"""Tables that must be empty in this release."""


NAMED: Final = MappingProxyType({"providers": ProviderTable, "prices": ModelPrice})
"""Tables of tables: any name stands below them."""
