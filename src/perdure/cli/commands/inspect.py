"""`perdure inspect`: what is live in a session and what it waits for (CM-22)."""

from collections.abc import Sequence

import click

import perdure
from perdure.cli.choices import store_of
from perdure.cli.endings import Ending
from perdure.cli.last import last_of_folder
from perdure.cli.reading import reading
from perdure.cli.spending import limits_words, spent_of, spent_words
from perdure.cli.surface import COMMIT, Surface, surfaced
from perdure.cli.tables import facts, table, when
from perdure.harness.overview import LiveTask, Overview, Queued, overview
from perdure.records.seqs import Seq
from perdure.records.sessions import SessionInfo


@click.command(
    help="""Show what is live in a session and what it waits for; write nothing.

    Needs no lock, so it works while another process drives the session. Without --session it is
    the last one made in this folder.
    """
)
@surfaced("store", "session", "conversation", "config")
@click.option(
    "--as-of",
    type=COMMIT,
    metavar="COMMIT",
    help="Show the session as it was at this commit's end.",
)
def command(surface: Surface, *, as_of: int | None) -> Ending:
    """Read and print."""
    flags = surface.flags

    async def run() -> Overview:
        url = store_of(surface)
        name = await last_of_folder(url) if flags.session is None else flags.session
        async with reading(url, name) as storage:
            return await overview(
                storage,
                conv_id=None if flags.conversation is None else Seq(flags.conversation),
                as_of=None if as_of is None else Seq(as_of),
            )

    found = perdure.run(run())
    return Ending(
        session=found.info.name,
        conversation=found.conversation,
        usage=spent_of(found.usage),
        data=as_document(found),
        text=as_words(found),
    )


def state_of(info: SessionInfo, *, is_idle: bool) -> str:
    """Answer idle, suspended, or owned by a process."""
    if info.owner is not None:
        return f"owned by {info.owner.pid}"
    return "idle" if is_idle else "suspended"


def as_document(found: Overview) -> dict[str, object]:
    """Answer the facts for `--json`."""
    return {
        "id": found.info.id,
        "state": state_of(found.info, is_idle=found.is_idle),
        "owner": found.info.owner,
        "boundary": found.boundary,
        "model": None if found.model is None else str(found.model),
        "created_ms": found.info.created_ms,
        "last_commit_ms": found.info.last_commit_ms,
        "live": found.live,
        "queue": found.queue,
        "approvals": [],
        "context": found.context,
        "budgets": found.budgets,
    }


def as_words(found: Overview) -> str:
    """Answer the facts for a person."""
    owner = found.info.owner
    rows: list[tuple[str, object]] = [
        ("session", found.info.name),
        ("id", found.info.id),
        ("state", state_of(found.info, is_idle=found.is_idle)),
    ]
    if owner is not None:
        rows.append(("owner", f"process {owner.pid} on {owner.host} since {when(owner.since)}"))
    rows += [
        ("commit", str(found.boundary)),
        ("committed", when(found.info.last_commit_ms)),
        ("model", found.model),
        ("context", _context_words(found)),
        ("spent", spent_words(spent_of(found.usage))),
        *((f"budget {one.input_id}", limits_words(one)) for one in found.budgets),
    ]
    return facts(rows) + _live_words(found.live) + _queue_words(found.queue)


def _context_words(found: Overview) -> str | None:
    size = found.context
    if size is None:
        return None
    about = "about " if size.is_estimate else ""
    window = "an unknown window" if size.window is None else f"{size.window:,}"
    return f"{size.entries:,} entries, {about}{size.tokens:,} tokens of {window}"


def _live_words(live: Sequence[LiveTask]) -> str:
    if not live:
        return "\nnothing is live\n"
    rows = [
        (
            str(task.id),
            task.kind if task.name is None else f"{task.kind} {task.name}",
            task.status,
            task.role,
            task.waits_for if not task.until_ms else f"{task.waits_for} at {when(task.until_ms)}",
        )
        for task in live
    ]
    return "\n" + table(("task", "kind", "status", "role", "waits for"), rows)


def _queue_words(queue: Sequence[Queued]) -> str:
    if not queue:
        return ""
    rows = [(str(item.id), item.mode, item.preview) for item in queue]
    return "\n" + table(("input", "queue", "text"), rows)
