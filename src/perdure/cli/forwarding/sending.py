"""Queue a text in a session, whoever has it open: what `steer` and `follow-up` share (CM-26)."""

import perdure
from perdure.cli.endings import Ending
from perdure.cli.forwarding.change import named, opening_of
from perdure.cli.forwarding.reach import reached
from perdure.cli.prompt import read_prompt
from perdure.cli.surface import Surface
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
