"""`perdure abort`: cancel what runs in a session, and withdraw what is queued (CM-26)."""

import click

import perdure
from perdure.cli.endings import Ending
from perdure.cli.forwarding.change import named
from perdure.cli.forwarding.reach import reached
from perdure.cli.surface import Surface, surfaced
from perdure.cli.visible import one_line
from perdure.cli.work import Work, prepare
from perdure.harness.cancellation import AbortReport, Drained
from perdure.records.messages import TextPart
from perdure.records.seqs import Seq


@click.command(
    help="""Cancel what runs in a session, and withdraw what is queued; prints the withdrawn texts.

    The process that has the session open does it; when none has, it is done here. What a call did
    before it was cancelled stays done.
    """
)
@surfaced("store", "session", "conversation", "config")
@click.option(
    "--only-if",
    type=click.IntRange(min=1),
    metavar="INPUT",
    help="Only while this input is queued or open.",
)
def command(surface: Surface, *, only_if: int | None) -> Ending:
    """Abort."""
    flags = surface.flags

    async def run() -> tuple[str, AbortReport]:
        url, name = await named(surface)
        ready = await prepare(surface, Work(), session=name, url=url)
        async with reached(ready.opening(session=name, create=False), name) as session:
            return name, await session.abort(
                None if flags.conversation is None else Seq(flags.conversation),
                None if only_if is None else Seq(only_if),
            )

    name, report = perdure.run(run())
    if report.joined:
        surface.terminal.say("an abort is under way already")
    elif not (report.marked or report.drained):
        surface.terminal.say("nothing runs and nothing is queued")
    else:
        surface.terminal.say(
            f"{len(report.marked)} tasks cancelled, {len(report.drained)} inputs withdrawn"
        )
    return Ending(
        session=name,
        conversation=flags.conversation,
        data={
            "marked": report.marked,
            "drained": [
                {
                    "input_id": one.input_id,
                    "conversation": one.conv_id,
                    "mode": one.mode,
                    "text": _text(one),
                }
                for one in report.drained
            ],
            "joined": report.joined,
        },
        text="".join(
            f"{one.input_id}  {one.mode}  {one_line(_text(one))}\n" for one in report.drained
        ),
    )


def _text(drained: Drained) -> str:
    return "\n".join(
        part.text
        for message in drained.messages
        for part in message.content
        if isinstance(part, TextPart)
    )
