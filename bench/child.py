"""One measurement in a process of its own; prints one JSON object.

python -m bench.child NAME FOLDER [KEY=VALUE …]
"""

import asyncio
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from bench import floors, kills, storage_rows
from bench.floors import stored_bytes
from bench.workload import open_many, open_turns, user_text
from perdure.harness.watching import Watch
from perdure.opening import open_store, system_ports

Figures = dict[str, float]
WARM_TURNS = 20


def cpu_s() -> float:
    """Answer the process's CPU seconds, its threads included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def w1(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Run N turns of one conversation; the first ones warm up and are not counted.

    `readers` watchers read what happens meanwhile, `silent` ones never do.
    """
    turns = int(facts["turns"])
    url = "memory:" if facts["store"] == "memory" else f"sqlite:{folder / 'w1.db'}"
    spent: list[float] = []
    async with open_turns(url, durability=facts["durability"]) as harness:
        root = await harness.root()
        reading = [
            asyncio.create_task(read_all(await root.watch().__aenter__()))
            for _ in range(int(facts.get("readers", 0)))
        ]
        silent = [await root.watch().__aenter__() for _ in range(int(facts.get("silent", 0)))]
        for turn in range(WARM_TURNS):
            await root.prompt(user_text(turn))
        began_cpu, began = cpu_s(), time.perf_counter()
        for turn in range(WARM_TURNS, turns):
            before = cpu_s()
            result = await root.prompt(user_text(turn))
            spent.append(cpu_s() - before)
            assert result.state == "answered"
        cpu, wall = cpu_s() - began_cpu, time.perf_counter() - began
    await asyncio.gather(*reading)
    del silent
    counted = turns - WARM_TURNS
    window = max(5, min(20, counted // 4))
    return {
        "cpu_ms": 1e3 * cpu / counted,
        "wall_ms": 1e3 * wall / counted,
        "first_ms": 1e3 * statistics.median(spent[:window]),
        "last_ms": 1e3 * statistics.median(spent[-window:]),
        "bytes": stored_bytes(folder) / turns,
        "rss_mb": rss_mb(),
    }


async def read_all(watch: Watch) -> None:
    """Read a watch to its end."""
    async for _ in watch:
        pass


async def w3(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Run T turns in each of C conversations at once, in one process and one store."""
    conversations, turns = int(facts["conversations"]), int(facts["turns"])
    sessions = open_store(
        f"sqlite:{folder / 'w3.db'}",
        system_ports(),
        durability="power" if facts["durability"] == "power" else "process",
    )
    harnesses = await open_many(sessions, [f"c{number:04d}" for number in range(conversations)])
    roots = [await harness.root() for harness in harnesses]

    async def converse(number: int) -> None:
        for turn in range(turns):
            result = await roots[number].prompt(user_text(turn))
            assert result.state == "answered"

    began_cpu, began = cpu_s(), time.perf_counter()
    await asyncio.gather(*(converse(number) for number in range(conversations)))
    wall, cpu = time.perf_counter() - began, cpu_s() - began_cpu
    for harness in harnesses:
        await harness.close()
    await sessions.close()
    done = conversations * turns
    return {"turns_per_s": done / wall, "cpu_ms": 1e3 * cpu / done}


async def reopen(folder: Path, facts: Mapping[str, str]) -> Figures:
    """Open a store that stands there, find its root and look at what is live."""
    before_rss = rss_mb()
    began = time.perf_counter()
    async with open_turns(f"sqlite:{folder / 'long.db'}", durability="process") as harness:
        await harness.root()
        harness.inspect()
        took = time.perf_counter() - began
    return {"ms": 1e3 * took, "rss_mb": rss_mb() - before_rss}


def rss_mb() -> float:
    """Answer resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


MEASURES: Mapping[str, Callable[[Path, Mapping[str, str]], Awaitable[Figures]]] = {
    "w1": w1,
    "w3": w3,
    "reopen": reopen,
    **storage_rows.MEASURES,
    **kills.MEASURES,
    **floors.MEASURES,
}


def main() -> None:
    """Run the measurement that the arguments name."""
    name, folder, *facts = sys.argv[1:]
    given: dict[str, str] = dict(fact.split("=", 1) for fact in facts)

    async def measured() -> Figures:
        return await MEASURES[name](Path(folder), given)

    figures: Any = asyncio.run(measured())
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
