"""Run measurements in new processes, a row and its floor in turn."""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


class Bench:
    """Run children and gather medians."""

    def __init__(self, *, rounds: int, scale: float) -> None:
        self.rounds = rounds
        self.scale = scale

    def sized(self, number: int) -> str:
        """Answer a repetition count, scaled."""
        return str(max(40, int(number * self.scale)))

    def child(self, name: str, folder: Path, **facts: object) -> dict[str, float]:
        """Run one measurement in a new process."""
        arguments = [f"{key}={value}" for key, value in facts.items()]
        done = subprocess.run(
            [sys.executable, "-m", "bench.child", name, str(folder), *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    def pairs(
        self, *children: tuple[str, dict[str, object]], rounds: int | None = None
    ) -> list[dict[str, float]]:
        """Run children in turn, round by round; answers the median figures of each."""
        gathered: list[list[dict[str, float]]] = [[] for _ in children]
        for _ in range(rounds or self.rounds):
            for at, (name, facts) in enumerate(children):
                with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
                    gathered[at].append(self.child(name, Path(folder), **facts))
        return [
            {key: statistics.median(one[key] for one in runs) for key in runs[0]}
            for runs in gathered
        ]
