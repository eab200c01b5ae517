"""`perdure run` on each hosted wire: parallel calls, then the same session in a second process."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from perdure.testing.wire_replies import WireCall, WireReply, WireText
from perdure.testing.wire_server import WireServer
from tests.surfaces.desk import Desk
from tests.unit.providers.wires import MODEL_IDS, WireName

T = TypeVar("T")

THREE_WIRES: tuple[WireName, ...] = ("openai", "openai-chat", "anthropic")


async def off_the_loop(work: Callable[[], T]) -> T:
    """Run a child process while the server answers it."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


@pytest.mark.spec("PV-01", "CM-18")
@pytest.mark.parametrize("wire", THREE_WIRES)
async def test_a_session_on_a_hosted_wire_goes_on_in_a_second_process(
    wire: WireName, desk: Desk
) -> None:
    (desk.folder / "notes.txt").write_text("seven\n")
    both = WireReply(
        parts=(
            WireCall(id="c0", name="list", pieces=('{"path":', '"."}')),
            WireCall(id="c1", name="read", pieces=('{"path":"notes', '.txt"}')),
        )
    )
    first = WireReply(parts=(WireText(pieces=("Seven ", "it is.")),))
    second = WireReply(parts=(WireText(pieces=("Still seven.",)),))
    async with WireServer(both, first, second) as server:
        address = server.root_url if wire == "anthropic" else server.base_url
        desk.config(f'[providers.{wire}]\nbase_url = "{address}"\nkey = "env:WIRE_KEY"\n')
        model = f"{wire}:{MODEL_IDS[wire]}"
        told = await off_the_loop(
            lambda: desk.run("run", "-s", "s", "-m", model, "What is noted?", WIRE_KEY="k" * 20)
        )
        again = await off_the_loop(
            lambda: desk.run("run", "-s", "s", "And now?", WIRE_KEY="k" * 20)
        )
        assert server.faults == []
        raws = [one.raw.decode() for one in server.posts]
    assert (told.code, told.out) == (0, "Seven it is.\n"), told.err
    assert (again.code, again.out) == (0, "Still seven.\n"), again.err
    assert len(raws) == 3
    assert "notes.txt" in raws[1]
    assert "seven" in raws[1]
    assert "Seven it is." in raws[2]
