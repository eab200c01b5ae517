"""The warm parent: one thread, everything imported, no loop and no store; it forks the lives.

It reads trials as JSON lines from standard input and answers reports on standard output. A child
is a fresh process in all that counts: it has never opened a store nor started a thread.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from perdure.testing.crash_rig.points import Board, Points
from perdure.testing.crash_rig.story import Ending, child
from perdure.testing.crash_rig.trial import Kill, Life, Report, Trial

LIFE_S_MAX: Final = 30.0
"""A life that takes longer is stuck; nothing in the story waits for anybody."""


def run(trial: Trial, board: Board) -> Report:
    """Live all lives of a trial."""
    folder = Path(trial.folder)
    lives: list[Life] = []
    faults: list[str] = []
    for number, kill in enumerate((*trial.kills, None)):
        life, status = _live(trial, kill, board, folder / f"points-{number}")
        lives.append(life)
        if not life.killed and status != 0:
            errors = (folder / "errors").read_text(encoding="utf-8", errors="replace")
            faults.append(f"life {number} ended with status {status}: {errors[-3_000:]}")
            break
    ending = folder / "ending.json"
    if not ending.exists():
        return Report(trial=trial, lives=tuple(lives), faults=(*faults, "no life came to its end"))
    found = msgspec.json.decode(ending.read_bytes(), type=Ending)
    return Report(
        trial=trial,
        lives=tuple(lives),
        faults=(*faults, *found.faults),
        commits=found.commits,
        effects=found.effects,
        outcomes=found.outcomes,
    )


def _live(trial: Trial, kill: Kill | None, board: Board, trace: Path) -> tuple[Life, int]:
    board.clear()
    points = Points(board, trace, kill)
    end, held = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        _redirect_output(Path(trial.folder) / "errors")
        child(trial, points, last=kill is None)
    os.close(held)
    after_s = LIFE_S_MAX if kill is None or kill.after_s is None else kill.after_s
    # The pipe ends with the child: whoever dies first, the wait is over.
    ended, _, _ = select.select([end], [], [], after_s)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(end)
    points.close()
    seconds = time.monotonic() - began
    was_planned = kill is not None and (kill.after_s is None or not ended)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and was_planned
    life = Life(
        kill="" if kill is None else str(kill),
        killed=killed,
        in_flight=board.in_flight() if killed else (),
        points=tuple(trace.read_text(encoding="utf-8").splitlines()) if trace.exists() else (),
        seconds=seconds,
    )
    return life, status


def _redirect_output(errors: Path) -> None:
    """Keep the child's words out of the protocol."""
    file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)


def main() -> None:
    """Serve trials until standard input ends."""
    board = Board()
    for line in sys.stdin.buffer:
        report = run(msgspec.json.decode(line, type=Trial), board)
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
