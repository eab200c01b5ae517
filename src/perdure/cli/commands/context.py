"""`perdure context`: the exact next request, with its tokens by source (CM-22)."""

import click
import msgspec

import perdure
from perdure.cli.choices import config_of, store_of
from perdure.cli.endings import Ending
from perdure.cli.last import last_of_folder
from perdure.cli.reading import reading
from perdure.cli.surface import COMMIT, Surface, surfaced
from perdure.cli.tables import table
from perdure.cli.visible import visible
from perdure.cli.work import Work, tools_of
from perdure.harness.next_request import NextRequest, conversation_of, next_request
from perdure.records.seqs import Seq


@click.command(
    help="""Print the exact next request of a session: messages, tools, system prompt.

    Writes nothing and needs no lock. Tools are the ones `run` would offer here. Tokens are
    estimates. Without --session it is the last one made in this folder.
    """
)
@surfaced("store", "session", "conversation", "config")
@click.option(
    "--as-of",
    type=COMMIT,
    metavar="COMMIT",
    help="The request as it would have been at this commit's end.",
)
def command(surface: Surface, *, as_of: int | None) -> Ending:
    """Read, project, print."""
    flags = surface.flags
    tools = tools_of(Work(), config_of(surface).values.tools)
    boundary = None if as_of is None else Seq(as_of)
    conv_id = None if flags.conversation is None else Seq(flags.conversation)

    async def run() -> tuple[str, NextRequest]:
        url = store_of(surface)
        name = await last_of_folder(url) if flags.session is None else flags.session
        async with reading(url, name) as storage:
            state = await conversation_of(storage, conv_id, boundary)
            if state is None:
                raise perdure.Rejected(
                    "unknown_target", f"there is no conversation {flags.conversation or 'yet'}"
                )
            return name, await next_request(storage, state, tools=tools, as_of=boundary)

    name, request = perdure.run(run())
    return Ending(
        session=name, conversation=request.conversation, data=request, text=_words(request)
    )


def _words(request: NextRequest) -> str:
    rows = [(one.source, _entry(one.entry), one.tokens) for one in request.tokens]
    rows.append(("total", None, sum(one.tokens for one in request.tokens)))
    said = {
        "system": request.system,
        "messages": request.messages,
        "tools": request.tools,
    }
    exact = msgspec.json.format(msgspec.json.encode(said), indent=2).decode()
    more = ""
    if request.open_calls:
        more = f"\n{request.open_calls} calls have no result yet; it comes before the request\n"
    return table(("source", "entry", "tokens"), rows) + more + "\n" + visible(exact) + "\n"


def _entry(entry_id: Seq | None) -> str | None:
    return None if entry_id is None else str(entry_id)
