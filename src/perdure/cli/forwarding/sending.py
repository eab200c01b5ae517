"""Queue a text in a session, whoever has it open: what `steer` and `follow-up` share (CM-26)."""

import click

import perdure
from perdure.cli.endings import Ending
from perdure.cli.forwarding.change import named, opening_of
from perdure.cli.forwarding.reach import reached
from perdure.cli.prompt import read_prompt
from perdure.cli.surface import Surface, surfaced
from perdure.records.inputs import InputMode
from perdure.records.seqs import Seq


def queue(
    surface: Surface, mode: InputMode, words: tuple[str, ...], request_id: str | None
) -> Ending:
    """Queue the text and print the input's id."""
    text = read_prompt(words)
    conv_id = surface.flags.conversation

    async def run() -> Ending:
        url, name = await named(surface)
        async with reached(opening_of(url, name), name) as session:
            accepted = await session.send(
                None if conv_id is None else Seq(conv_id), mode, text, request_id
            )
            if session.is_here:
                surface.terminal.say("nobody has the session open; `perdure resume` goes on", "dim")
        return Ending(
            session=name,
            conversation=conv_id,
            input_id=accepted.input_id,
            data={"input_id": accepted.input_id, "mode": mode},
            text=f"{accepted.input_id}\n",
        )

    return perdure.run(run())


def queueing(mode: InputMode, when: str) -> click.Command:
    """Make the command that queues a text; `when` says when the model reads it."""

    @click.command(
        help=f"""Queue TEXT for the model to read {when}.

        It goes to the process that has the session open. Prints the input's id; `-` reads TEXT from
        standard input.
        """
    )
    @surfaced("store", "session", "conversation", "config")
    @click.argument("text", nargs=-1)
    @click.option(
        "--request-id",
        metavar="KEY",
        help="A name for this request: repeating it gives the first answer, not a second one.",
    )
    def command(surface: Surface, *, text: tuple[str, ...], request_id: str | None) -> Ending:
        """Queue."""
        return queue(surface, mode, text, request_id)

    return command
