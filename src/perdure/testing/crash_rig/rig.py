"""Drive warm parents: hand out trials, gather reports, choose points and moments."""

import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import msgspec

from perdure.testing.crash_rig.trial import POINTS, RECOVERY_POINTS, Kill, Report, Trial

WORKERS: Final = 2
CALIBRATION_RUNS: Final = 5
ROUND: Final = 200
"""Trials between two measurements of how long a run takes."""

AGAIN_SHARE: Final = 0.2
"""How many of the random trials are killed a second time, while they recover."""


class CrashRig:
    """Run trials in warm parents; a context manager.

    Folders of trials that held are removed; those of trials that did not stay below `folder`.
    """

    def __init__(self, folder: Path | None = None, *, workers: int = WORKERS) -> None:
        self._stack = ExitStack()
        self._folder = folder
        self._workers = workers
        self._free: list[_Worker] = []
        self._lock = threading.Lock()
        self._number = 0

    def __enter__(self) -> Self:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="perdure-crash-"))
        for _ in range(self._workers):
            worker = _Worker()
            self._stack.callback(worker.stop)
            self._free.append(worker)
        self._pool = self._stack.enter_context(ThreadPoolExecutor(self._workers))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(
        self,
        plans: Sequence[tuple[Kill, ...]],
        **facts: Any,
    ) -> Iterator[Report]:
        """Run one trial for each plan of kills; answers reports in order.

        `facts` are other fields of `Trial`, the same for all.
        """
        assert self._folder is not None, "use the rig as a context manager"
        trials: list[Trial] = []
        for kills in plans:
            self._number += 1
            folder = self._folder / f"trial-{self._number:05}"
            folder.mkdir(parents=True)
            trials.append(Trial(folder=str(folder), kills=kills, **facts))
        return self._pool.map(self._one, trials)

    def _one(self, trial: Trial) -> Report:
        with self._lock:
            worker = self._free.pop()
        try:
            report = worker.run(trial)
        finally:
            with self._lock:
                self._free.append(worker)
        if not report.faults:
            shutil.rmtree(trial.folder, ignore_errors=True)
        return report

    def whole_run(self, *, early_close: bool = False) -> Report:
        """Run the story without a kill, to see its points in order and how long it takes."""
        kill = Kill(point="never")
        (report,) = self.run([(kill,)], early_close=early_close)
        return report

    def random_kills(self, count: int, seed: int) -> Iterator[Report]:
        """Kill at moments uniform over a whole run's wall time, until `count` kills have happened.

        A moment may fall after its run's end; how long a run takes is measured again for each
        round, since a machine is now quick and now slow.
        """
        chance = random.Random(seed)
        done = 0
        while done < count:
            runs = [self.whole_run().lives[0].seconds for _ in range(CALIBRATION_RUNS)]
            whole_s = sorted(runs)[len(runs) // 2]
            plans = [_moments(chance, whole_s) for _ in range(min(ROUND, count - done))]
            for report in self.run(plans):
                done += sum(life.killed for life in report.lives)
                yield report


def _moments(chance: random.Random, whole_s: float) -> tuple[Kill, ...]:
    lives = 2 if chance.random() < AGAIN_SHARE else 1
    return tuple(Kill(after_s=chance.random() * whole_s) for _ in range(lives))


class _Worker:
    """One warm parent."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "perdure.testing.crash_rig.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, trial: Trial) -> Report:
        stdin, stdout = self._pipes()
        stdin.write(msgspec.json.encode(trial) + b"\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the warm parent died on the trial {trial!r}")
        return msgspec.json.decode(line, type=Report)

    def stop(self) -> None:
        stdin, stdout = self._pipes()
        stdin.close()
        self._process.wait()
        stdout.close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        return stdin, stdout


def named_kills(points: Sequence[str]) -> list[Kill]:
    """Answer one kill for every time a run reached a point: every commit is a possible last one."""
    reached: Counter[str] = Counter()
    kills: list[Kill] = []
    for name in points:
        reached[name] += 1
        kills.append(Kill(point=name, nth=reached[name]))
    return kills


def first_and_last(points: Sequence[str]) -> list[Kill]:
    """Answer a kill for the first and the last time each named point is reached."""
    reached = Counter(points)
    names = [name for name in (*POINTS, *RECOVERY_POINTS) if reached[name]]
    return [
        Kill(point=name, nth=nth) for name in names for nth in dict.fromkeys((1, reached[name]))
    ]
