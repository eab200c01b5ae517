"""The composition root: a store URL and a model text become an open harness.

The only place that marries engine and adapters, and the only place that loads a module by name
(K06): an adapter is imported when a URL or a model names it, so a program that never calls a
provider pays for none.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from socket import socket
from types import MappingProxyType, ModuleType, TracebackType
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct

from perdure.client.asking import TRIES
from perdure.client.places import place_of
from perdure.client.server import Connecting
from perdure.configuration.config import Config
from perdure.drive.limits import Limits
from perdure.errors import Rejected, StorageDamaged, text_of
from perdure.harness.harness import Harness
from perdure.harness.options import HarnessOptions
from perdure.hosts.clock import SystemClock
from perdure.hosts.folders import launch_root, user_data_folder
from perdure.hosts.late_processes import LateProcesses
from perdure.hosts.randomness import SystemRandomness
from perdure.hosts.silent_telemetry import SilentTelemetry as SilentTelemetry
from perdure.hosts.silent_telemetry import chosen_telemetry
from perdure.hosts.threads import DaemonThreads
from perdure.kinds.hooks import HOOK_SECONDS, YIELDS_MAX, Hooks
from perdure.kinds.permissions import Permissions
from perdure.kinds.policy import ApprovalPolicy
from perdure.kinds.secrets import Secrets
from perdure.kinds.services import SystemPrompt
from perdure.ports import (
    Clock,
    Files,
    LaunchingTool,
    Models,
    ProcessHost,
    Randomness,
    Sessions,
    Storage,
    Telemetry,
    Threads,
    Tool,
)
from perdure.providers.config import ProviderConfig
from perdure.providers.registry import OfferedModels
from perdure.records.budgets import Budget
from perdure.records.codec import checked_raw
from perdure.records.entries import ModelId
from perdure.records.models import parse_model
from perdure.records.settings import GenerationSettings, RetryPolicy, ThinkingLevel, ToolOrder
from perdure.storage.memory import MemorySessions
from perdure.storage.naming import named_by_id
from perdure.toolkits.files import FILES_RESOURCE

Durability = Literal["power", "process"]

HAS_LOCKS: Final = os.name == "posix"
"""Whether there are file locks and process groups, as on Linux and macOS (SN-15)."""

SCHEMES: Final = ("memory:", "sqlite:FILE")
"""The stores this release opens (SN-01)."""

CONTROL: Final = "perdure.hosts.control_socket"

NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})


def load(name: str) -> ModuleType:
    """Import an adapter by name; nothing else in perdure imports late (K06)."""
    return import_module(name)


class Ports(Struct, frozen=True, kw_only=True):
    """The world as one harness sees it; tests hand in their own."""

    clock: Clock
    randomness: Randomness
    threads: Threads


def system_ports() -> Ports:
    """Answer the real clock, random numbers and threads."""
    return Ports(clock=SystemClock(), randomness=SystemRandomness(), threads=DaemonThreads())


class OpenOptions(Struct, frozen=True, kw_only=True):
    """Everything `perdure.open` accepts besides the store's URL.

    `model` is `provider:model`; a stored one stays unless it differs and `keep_model` is False
    (K44). `secrets` names environment variables whose texts are stored as `[secret NAME]` only;
    the keys of providers are such secrets anyway (SX-05). `models` replaces every provider;
    `data_folder` holds the local model; `sessions` is a container that is open already and stays
    so. With `named_by_id` a new session is made, and `session` is the start of its name; the first
    digits of its id follow (CM-18). `telemetry` is "otel", "none" or your own; left out, spans go
    to the tracer provider the program has set, if any. `budget` holds for all that the session ever
    spends; it is not stored (BG-02). With `control` other programs of this user can reach the
    session of a file meanwhile (CM-16). `hooks` are the host's handlers, each at most
    `hook_seconds` long; on_yield may go on `yields_max` times for one input.
    """

    session: str
    model: str
    tools: Sequence[Tool] = ()
    create: bool = True
    named_by_id: bool = False
    durability: Durability = "power"
    system_prompt: SystemPrompt = None
    thinking: ThinkingLevel = "off"
    tool_order: ToolOrder = "parallel"
    stream_options: Mapping[str, Any] = NO_OPTIONS
    retry: RetryPolicy = RetryPolicy()
    termination: Literal["any", "all"] = "any"
    interrupted: Literal["retry", "publish"] = "retry"
    keep_model: bool = False
    permissions: Permissions = Permissions()
    approvals: ApprovalPolicy = ApprovalPolicy()
    hooks: Hooks | None = None
    hook_seconds: int = HOOK_SECONDS
    yields_max: int = YIELDS_MAX
    secrets: Sequence[str] = ()
    limits: Limits | None = None
    budget: Budget | None = None
    resources: Mapping[str, object] = NO_OPTIONS
    telemetry: Telemetry | Literal["otel", "none"] | None = None
    data_folder: Path | None = None
    providers: Mapping[str, ProviderConfig] = NO_OPTIONS
    models: Models | None = None
    sessions: Sessions | None = None
    ports: Ports | None = None
    on_error: Callable[[BaseException, int | None], None] | None = None
    control: bool = True


class OpenSession:
    """A session being opened: an async context manager of its `Harness`."""

    def __init__(self, url: str, options: OpenOptions) -> None:
        """Take URL and options; nothing is opened before `async with`."""
        self._url = url
        self._options = options
        self._stack = AsyncExitStack()
        self._sessions: Sessions | None = None
        self._name = options.session

    async def __aenter__(self) -> Harness:
        """Open the store, the session in it, and the harness over it.

        Raises:
            Rejected: `not_found`, `invariant`, as the store and the harness say.
            StorageBusy: another live process owns the session.
        """
        try:
            return await self._open()
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close what was opened."""
        await self._stack.aclose()

    async def reader(self) -> Storage:
        """Open the session once more, for reading, while it is open here; the caller closes it."""
        assert self._sessions is not None, "the session is not open"
        return await self._sessions.open(self._name, create=False, read_only=True)

    async def _open(self) -> Harness:
        options = self._options
        check_tools(options.tools)
        ports = options.ports or system_ports()
        model = parse_model(options.model)
        secrets = Secrets({name: os.environ.get(name, "") for name in options.secrets})
        models = options.models or await offered_models(
            model,
            options.providers,
            ports,
            data_folder=options.data_folder,
            noted=secrets.note,
        )
        # Looking for folders blocks, however briefly.
        sessions, control = await ports.threads.run("open", partial(self._store, ports))
        if options.sessions is None:
            self._stack.push_async_callback(sessions.close)
        if isinstance(control, OSError):
            self._report(secrets, RuntimeWarning(f"there is no control address: {control}"))
            control = None
        if control is not None:
            self._stack.push_async_callback(ports.threads.run, "close", control.remove)
            self._stack.push_async_callback(control.close)
        address = None if control is None else control.address
        if options.named_by_id:
            storage = await named_by_id(
                sessions, options.session, ports.randomness, control=address
            )
        else:
            storage = await sessions.open(options.session, create=options.create, control=address)
        processes = await ports.threads.run("open", partial(self._processes, ports))
        harness = await self._harness(
            storage, models=models, model=model, processes=processes, ports=ports, secrets=secrets
        )
        self._stack.push_async_callback(harness.close)
        self._sessions, self._name = sessions, harness.info.name
        if control is not None:

            async def answer(listener: socket, token: str) -> Any:
                web = await ports.threads.run("load", partial(load, "perdure.web.control"))
                return await web.answer(harness, sessions, ports.threads, listener, token)

            control.listen(answer, partial(self._report, secrets))
        return harness

    def _store(self, ports: Ports) -> tuple[Sessions, Any]:
        """Answer the container, and what others reach its session by, or why there is no such.

        That is a `ControlSocket`, an OSError, or None.
        """
        sessions = self._options.sessions
        if sessions is None:
            sessions = open_store(self._url, ports, durability=self._options.durability)
        if not self._options.control or launch_root(self._url) is None:
            return sessions, None
        try:
            return sessions, load(CONTROL).ControlSocket.make()
        except OSError as error:
            return sessions, error

    def _report(self, secrets: Secrets, error: BaseException) -> None:
        (self._options.on_error or partial(print_error, secrets))(error, None)

    async def _harness(
        self,
        storage: Storage,
        *,
        models: Models,
        model: ModelId,
        processes: ProcessHost | None,
        ports: Ports,
        secrets: Secrets,
    ) -> Harness:
        options = self._options
        try:
            return await Harness.open(
                storage,
                HarnessOptions(
                    models=models,
                    clock=ports.clock,
                    randomness=ports.randomness,
                    threads=ports.threads,
                    telemetry=chosen_telemetry(options.telemetry, load),
                    initial=initial_settings(options, model),
                    tools=options.tools,
                    processes=processes,
                    resources={FILES_RESOURCE: _files(ports.threads), **options.resources},
                    permissions=options.permissions,
                    approvals=options.approvals,
                    secrets=secrets,
                    system_prompt=options.system_prompt,
                    hooks=options.hooks,
                    hook_seconds=options.hook_seconds,
                    yields_max=options.yields_max,
                    limits=options.limits,
                    budget=options.budget,
                    model_given=not options.keep_model,
                    on_error=options.on_error or partial(print_error, secrets),
                ),
            )
        except (msgspec.MsgspecError, RecursionError) as error:
            await storage.close()
            raise StorageDamaged(
                f"the session {storage.info.name!r} of {self._url!r} cannot be read: {error}"
            ) from None
        except BaseException:
            await storage.close()
            raise

    def _processes(self, ports: Ports) -> ProcessHost | None:
        """Start commands beside the store: there a later process finds them (SN-13)."""
        if not HAS_LOCKS:
            return None
        place = launch_root(self._url)
        if place is None:
            places = load("perdure.hosts.launch_places")
            place = cast("Path", places.temporary_place())
            self._stack.push_async_callback(
                ports.threads.run, "close", partial(places.remove_place, place)
            )

        def make() -> ProcessHost:
            local = load("perdure.hosts.processes").LocalProcesses(place, ports.threads)
            return cast("ProcessHost", local)

        return LateProcesses(make, ports.threads)


def open(  # noqa: A001 - the front door's word; its keywords are the options
    url: str | Config,
    *,
    session: str,
    model: str | None = None,
    tools: Sequence[Tool] = (),
    **options: Any,
) -> OpenSession:
    """Open a session: `async with perdure.open(url, session=…, model=…, tools=[…]) as harness`.

    Args:
        url: `memory:` or `sqlite:FILE`; or what `load_config` answers, for store, model, providers,
            limits and permissions at once. An argument given here wins over the configuration.
        session: the session's name; it is created when absent, unless `create=False`.
        model: `provider:model`, such as `local:smollm2` or `anthropic:claude-sonnet-4-5`.
        tools: what the model may call.
        options: the other fields of `OpenOptions`.

    Raises:
        Rejected: `invariant`, for a URL, a name or a model that cannot be used.
    """
    if isinstance(url, Config):
        options = {**configured(url), **options}
        model = model or url.values.model.name
        url = url.values.store.url or ""
    if model is None:
        raise Rejected("invariant", "no model is given: pass model='provider:model'")
    return OpenSession(url, OpenOptions(session=session, model=model, tools=tools, **options))


def connect(
    url: str, *, token: str | None = None, tries: int = TRIES, ports: Ports | None = None
) -> Connecting:
    """Connect to a server: `async with perdure.connect(url, token=…) as server` (WB-07 to WB-16).

    Args:
        url: `http://HOST:PORT`, or `unix:/PATH` of a control address.
        token: what lets the caller in; left out, it is the fragment of the URL that `perdure serve`
            prints, or stands beside the socket.
        tries: how often a request is sent at most when no server answers or the answer is lost.
        ports: the world as the client sees it; tests hand in their own.

    Raises:
        Rejected: `invariant`, for an address that cannot be used, or no token.
    """
    ports = ports or system_ports()
    place = place_of(url, token)
    return Connecting(place, ports, load=load, tries=tries)


def load_config(path: str | Path | None = None) -> Config:
    """Read `perdure.toml`: `path`, else PERDURE_CONFIG, else the user's and the project's files.

    Raises:
        Rejected: `invariant`; its message has one line for each fault, with file, line, key, what
            was refused and what would be accepted.
    """
    loader = load("perdure.configuration.loading")
    return cast("Config", loader.load_config(path))


def configured(config: Config) -> dict[str, Any]:
    """Answer a configuration as options of `open`, all but store, model and tools."""
    options = load("perdure.configuration.options")
    return cast("dict[str, Any]", options.options_of(config.values))


def open_store(url: str, ports: Ports, *, durability: Durability = "power") -> Sessions:
    """Answer the container a URL names; nothing is opened yet.

    Raises:
        Rejected: `invariant`, for another scheme, an empty place, or a missing folder (SN-01).
    """
    scheme, _, place = url.partition(":")
    if url == "memory:":
        return MemorySessions(clock=ports.clock, randomness=ports.randomness)
    if scheme == "sqlite" and place:
        if not HAS_LOCKS:
            raise Rejected(
                "invariant",
                f"the store {url!r} needs file locks, which perdure uses on Linux and macOS only; "
                f"memory: works here",
            )
        file = Path(place).expanduser().absolute()
        if file.is_dir():
            raise Rejected("invariant", f"the store {url!r} is a folder; name a file in it")
        if not file.parent.is_dir():
            raise Rejected(
                "invariant", f"the folder {str(file.parent)!r} of the store {url!r} is missing"
            )
        sqlite = load("perdure.storage.sqlite")
        return cast(
            "Sessions",
            sqlite.SqliteSessions(
                Path(place).expanduser(),
                durability=durability,
                clock=ports.clock,
                randomness=ports.randomness,
            ),
        )
    raise Rejected("invariant", f"the store {url!r} is not one of {' and '.join(SCHEMES)}")


def check_tools(tools: Sequence[Tool]) -> None:
    """Refuse a tool that starts commands where they cannot be found again (SN-15).

    Raises:
        Rejected: `invariant`, naming the tool.
    """
    for tool in tools:
        if not HAS_LOCKS and isinstance(tool, LaunchingTool):
            raise Rejected(
                "invariant",
                f"the tool {tool.name!r} starts commands, which perdure does on Linux and macOS "
                f"only; leave it out",
            )


def _files(threads: Threads) -> Callable[[str], Files]:
    """Answer the resource that file tools ask for: a root folder's files (TL-34)."""

    def opened(root: str) -> Files:
        local = load("perdure.hosts.files").LocalFiles(root, threads)
        return cast("Files", local)

    return opened


async def offered_models(
    model: ModelId,
    configs: Mapping[str, ProviderConfig],
    ports: Ports,
    *,
    data_folder: Path | None = None,
    noted: Callable[[str, str], None] | None = None,
) -> Models:
    """Answer the models a host offers, with the wanted one's provider loading in a thread (PV-04).

    `noted` is told the name and the text of every key that is found (SX-05).

    Raises:
        Rejected: `invariant`, for an unknown provider (PV-02).
    """
    others: dict[str, Models] = {}
    if model.provider == "scripted":
        scripted = load("perdure.providers.script_files")
        others["scripted"] = await scripted.scripted_from_file(
            model.model_id, clock=ports.clock, threads=ports.threads
        )
    elif model.provider == "local":
        folder = data_folder or user_data_folder()
        local = load("perdure.providers.local")
        embedded = local.LocalModels(folder, threads=ports.threads, load=load)
        embedded.begin(model)
        others["local"] = embedded
    offered = OfferedModels(
        load=load,
        threads=ports.threads,
        clock=ports.clock,
        configs=configs,
        others=others,
        noted=noted,
    )
    offered.check(model)
    offered.begin(model.provider)
    return offered


def initial_settings(options: OpenOptions, model: ModelId) -> GenerationSettings:
    """Answer the settings a conversation starts with."""
    return GenerationSettings(
        model=model,
        thinking=options.thinking,
        tool_order=options.tool_order,
        stream_options=checked_raw(dict(options.stream_options)),
        retry=options.retry,
        termination=options.termination,
        interrupted=options.interrupted,
    )


def print_error(secrets: Secrets, error: BaseException, task_id: int | None) -> None:
    """Say on standard error what a listener, hook or handler raised, without secrets."""
    where = "" if task_id is None else f" in task {task_id}"
    said, _ = secrets.text(f"perdure: {type(error).__name__}{where}: {text_of(error)}\n")
    sys.stderr.write(said)
