"""How a script ends, whatever still runs on its loop (SC-26)."""

import asyncio

import pytest

import perdure


async def stubborn(begun: asyncio.Event) -> None:
    """Swallow every cancellation."""
    while True:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def leave_one_behind() -> str:
    begun = asyncio.Event()
    task = asyncio.ensure_future(stubborn(begun))
    await begun.wait()
    assert not task.done()
    return "over"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_swallows_its_cancellation_keeps_no_script_from_ending() -> None:
    assert perdure.run(leave_one_behind()) == "over"


def test_what_can_be_cancelled_has_ended_and_errors_pass() -> None:
    story: list[str] = []

    async def patient() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            story.append("ended")

    async def main() -> None:
        begun = asyncio.ensure_future(patient())
        await asyncio.sleep(0)
        assert not begun.done()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        perdure.run(main())
    assert story == ["ended"]
