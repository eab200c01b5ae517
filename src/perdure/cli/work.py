"""What `run` and `resume` drive with: model, tools and permissions, by flag or configuration."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_args

import click
from msgspec import Struct

import perdure
from perdure.cli.choices import config_of, store_of
from perdure.cli.endings import UsageProblem
from perdure.cli.places import data_folder, exists, made_ready, no_model
from perdure.cli.surface import Flags, Surface
from perdure.configuration.tables import ToolsTable
from perdure.harness.overview import stored_model
from perdure.hosts.files import LocalFiles
from perdure.hosts.folders import user_name
from perdure.hosts.threads import DaemonThreads
from perdure.opening import OpenSession, configured, open_store, system_ports
from perdure.ports import Tool
from perdure.providers.config import HOSTED
from perdure.providers.local_files import MODEL_NAME, find_local
from perdure.records.settings import ThinkingLevel
from perdure.toolkits.files import FILES_RESOURCE, file_tools
from perdure.toolkits.shell import shell_tools

LOCAL_MODEL: Final = f"local:{MODEL_NAME}"

LIBRARIES: Final = MappingProxyType(
    {
        "local": ("xllamacpp",),
        "openai": ("pydantic_ai", "openai"),
        "anthropic": ("pydantic_ai", "anthropic"),
    }
)
"""The libraries of each extra that serves a model; looked for, not loaded (CM-01)."""

NEAR: Final = 0.5
"""How alike a pattern and the tool it may have meant are, from 0 to 1."""


class Work(Struct, frozen=True, kw_only=True):
    """The flags of a command that drives."""

    model: str | None = None
    thinking: ThinkingLevel | None = None
    root: Path | None = None
    tools: tuple[str, ...] = ()
    no_tools: bool = False
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    yes: bool = False
    no_ask: bool = False


_OPTIONS: Final[tuple[Callable[..., Any], ...]] = (
    click.option(
        "-m",
        "--model",
        metavar="PROVIDER:MODEL",
        help="The model.  [default: the session's, PERDURE_MODEL, [model] name, local:smollm2]",
    ),
    click.option(
        "--thinking", type=click.Choice(get_args(ThinkingLevel)), help="How much the model thinks."
    ),
    click.option(
        "--root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="The folder that tools work in.  [default: the current one]",
    ),
    click.option(
        "--tools",
        multiple=True,
        metavar="KIT",
        help="Offer only these toolkits: files, shell.  Repeatable.  [default: both]",
    ),
    click.option("--no-tools", is_flag=True, help="Offer no tools."),
    click.option(
        "--allow", multiple=True, metavar="TOOL", help="Let this tool run unasked.  Repeatable."
    ),
    click.option(
        "--deny", multiple=True, metavar="TOOL", help="Never let this tool run.  Repeatable."
    ),
    click.option("--yes", is_flag=True, help="Let every tool run that would ask."),
    click.option("--no-ask", is_flag=True, help="Ask nothing; what asks waits, with exit code 5."),
)


def working(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags of `Work`, handed over as one argument."""

    def run(surface: object, /, **given: Any) -> object:
        flags = {name: given.pop(name) for name in Work.__struct_fields__}
        return command(surface, Work(**flags), **given)

    wrapped: Callable[..., Any] = wraps(command)(run)
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


class Ready(Struct, frozen=True, kw_only=True):
    """Everything that opening needs but the session, and the flags of the lines that continue."""

    url: str
    options: Mapping[str, Any]
    continuing: Sequence[str]
    again: Sequence[str]
    places: Sequence[str]

    def opening(self, *, session: str, **more: Any) -> OpenSession:
        """Answer the session to be opened."""
        return perdure.open(self.url, session=session, **self.options, **more)


async def prepare(
    surface: Surface, work: Work, *, session: str | None, url: str | None = None
) -> Ready:
    """Find out store, model, tools and permissions.

    Raises:
        UsageProblem: an unknown toolkit or tool, no or an empty model, or one whose library is
            not installed.
    """
    if work.model is not None and not work.model.strip():
        raise UsageProblem(
            f"--model {work.model!r} names no model", "give provider:model, or leave the flag out"
        )
    config = config_of(surface)
    place = made_ready(url or store_of(surface))
    stored = None if session is None else await model_of(place, session)
    model = work.model or stored or config.values.model.name or _local_model()
    check_extra(model)
    tools = tools_of(work, config.values.tools)
    _check_patterns(work, [tool.name for tool in tools])
    options = configured(config)
    options.update(
        model=model,
        keep_model=work.model is None,
        tools=tools,
        resources={FILES_RESOURCE: _files(config.values.tools)},
        data_folder=data_folder(),
        on_error=partial(_complain, surface),
        permissions=perdure.Permissions(
            allow=(*config.values.approvals.allow, *work.allow),
            deny=(*config.values.approvals.deny, *work.deny),
            yes=work.yes,
            subject=by_of("cli"),
        ),
    )
    if work.thinking is not None:
        options["thinking"] = work.thinking
    return Ready(
        url=place,
        options=options,
        continuing=_continuing(surface.flags, work),
        again=_again(surface.flags, work),
        places=places_of(surface.flags),
    )


async def model_of(url: str, session: str) -> str | None:
    """Answer the model a session has stored; None for a session or a store that is not there."""
    if not exists(url):
        return None
    sessions = open_store(url, system_ports())
    try:
        storage = await sessions.open(session, create=False, read_only=True)
        model = await stored_model(storage)
    except perdure.Rejected as error:
        if error.code != "not_found":
            raise
        return None
    finally:
        await sessions.close()
    return None if model is None else str(model)


def _local_model() -> str:
    """Answer the local model when its file and its runtime are there."""
    if find_local(data_folder()) is None or not is_installed("local"):
        raise no_model()
    return LOCAL_MODEL


def extra_of(provider: str) -> str | None:
    """Name the extra a provider needs; None when it needs none, or is unknown."""
    if provider == "local":
        return provider
    return HOSTED[provider].extra if provider in HOSTED else None


def is_installed(extra: str) -> bool:
    """Say whether every library of an extra is there."""
    return all(find_spec(name) is not None for name in LIBRARIES[extra])


def check_extra(model: str) -> None:
    """Refuse a model whose provider's libraries are not installed, before anything is made.

    Raises:
        UsageProblem: `missing_extra`, with the line that installs it.
    """
    provider = model.partition(":")[0]
    extra = extra_of(provider)
    if extra is not None and not is_installed(extra):
        missing = [name for name in LIBRARIES[extra] if find_spec(name) is None]
        raise UsageProblem(
            f"the model {model!r} needs {' and '.join(missing)}, which is not installed",
            f"run: pip install 'perdure[{extra}]'",
            code="missing_extra",
        )


def _complain(surface: Surface, error: BaseException, task_id: int | None) -> None:
    """Say what a listener, hook or handler raised; its words may be a model's (SX-03)."""
    where = "" if task_id is None else f" in task {task_id}"
    surface.terminal.complain(f"perdure: {type(error).__name__}{where}: {error}", "warn")


def tools_of(work: Work, table: ToolsTable) -> tuple[Tool, ...]:
    """Answer the tools of the chosen kits, in the chosen folder."""
    if work.no_tools:
        return ()
    root = Path(work.root or table.root or Path.cwd()).absolute()
    kits: Mapping[str, Callable[[Path], Sequence[Tool]]] = {
        "files": file_tools,
        "shell": partial(shell_tools, env=table.env),
    }
    for kit in work.tools:
        if kit not in kits:
            raise UsageProblem(f"there is no toolkit {kit!r}; there are: {', '.join(kits)}")
    return tuple(tool for kit in work.tools or table.kits for tool in kits[kit](root))


def _check_patterns(work: Work, offered: Sequence[str]) -> None:
    """Refuse a flag that names no offered tool: a misspelt `--deny` would deny nothing.

    Patterns of the configuration may name tools that only other commands offer.
    """
    for flag, patterns in (("--allow", work.allow), ("--deny", work.deny)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in offered):
                near = get_close_matches(pattern, offered, n=1, cutoff=NEAR)
                known = f"there are: {', '.join(offered)}" if offered else "none is offered"
                raise UsageProblem(
                    f"{flag} {pattern!r} matches no tool that is offered",
                    f"did you mean {near[0]!r}?" if near else known,
                )


def _files(table: ToolsTable) -> Callable[[str], LocalFiles]:
    """Answer what file tools reach a root with: the root, and the further folders of the file."""
    threads = DaemonThreads()

    def opened(root: str) -> LocalFiles:
        return LocalFiles(root, threads, extra_roots=table.extra_roots)

    return opened


def by_of(surface: str) -> str:
    """Name the person at this terminal, for the record of a decision (AQ-06, AQ-09)."""
    return f"{surface}:{user_name()}"


def places_of(flags: Flags) -> Sequence[str]:
    """Answer the flags of another command on the same store with the same configuration."""
    words: list[str] = []
    if flags.store:
        words += ["--store", flags.store]
    if flags.config:
        words += ["--config", str(flags.config)]
    return words


def _continuing(flags: Flags, work: Work) -> Sequence[str]:
    """Answer the flags of `perdure resume` that goes on as this command did (CM-10)."""
    words = [*places_of(flags)]
    if work.root:
        words += ["--root", str(work.root)]
    for flag, values in (("--tools", work.tools), ("--allow", work.allow), ("--deny", work.deny)):
        for value in values:
            words += [flag, value]
    return [*words, *(["--no-tools"] if work.no_tools else []), *(["--yes"] if work.yes else [])]


def _again(flags: Flags, work: Work) -> Sequence[str]:
    """Answer the flags of `perdure run` that does what this command did (CM-10)."""
    words: list[str] = []
    if work.model:
        words += ["--model", work.model]
    if work.thinking:
        words += ["--thinking", work.thinking]
    if flags.conversation:
        words += ["--conversation", str(flags.conversation)]
    return [*words, *_continuing(flags, work)]
