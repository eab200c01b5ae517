"""Print the table: `python -m bench [--only ROW,…] [--rounds N] [--turns N] [--json FILE]`.

Each round runs a row's floor and its measure one after the other, each in a new process with
bytecode compiled and files cached; figures are medians over the rounds.
"""

import argparse
import json
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.kills import NOTES, kill, writer_argv
from bench.long_store import build_long_store
from bench.rows import Row, facts_of, ratio_row, report
from bench.runner import ROOT, Bench
from bench.workload import WORKLOAD

SEED = 20


def w1_rows(bench: Bench) -> list[Row]:
    """A turn's cost."""
    turns = bench.sized(200)
    own, memory, floor = bench.pairs(
        ("w1", {"turns": turns, "store": "sqlite", "durability": "process"}),
        ("w1", {"turns": turns, "store": "memory", "durability": "process"}),
        ("floor_turn", {"turns": turns}),
    )
    (power,) = bench.pairs(("w1", {"turns": turns, "store": "sqlite", "durability": "power"}))
    return [
        Row(
            name="W1 cpu",
            durability="process",
            what="CPU of a turn, SQLite, process",
            measured=own["cpu_ms"],
            unit="ms",
            floor=floor["cpu_ms"],
            goal="<= 1.5 ms",
            kept=own["cpu_ms"] <= 1.5,
        ),
        Row(
            name="W1 cpu power",
            durability="power",
            what="CPU of a turn, SQLite, power",
            measured=power["cpu_ms"],
            unit="ms",
            floor=floor["cpu_ms"],
            goal="<= 1.5 ms",
            kept=power["cpu_ms"] <= 1.5,
        ),
        Row(
            name="W1 cpu memory",
            what="CPU of a turn, memory",
            measured=memory["cpu_ms"],
            unit="ms",
            floor=floor["cpu_ms"],
        ),
        Row(
            name="W1 wall",
            durability="power",
            what="a turn, SQLite, power",
            measured=power["wall_ms"],
            unit="ms",
            floor=floor["wall_ms"],
        ),
        Row(
            name="W1 memory",
            durability="process",
            what="resident memory after the turns, all of Python included",
            measured=own["rss_mb"],
            unit="MB",
            goal="<= 45 MB",
            kept=own["rss_mb"] <= 45,
        ),
    ]


def growth_rows(bench: Bench) -> list[Row]:
    """Turn 2,000 against turn 20, and bytes as a straight line."""
    turns = max(400, int(2_000 * bench.scale))
    facts: dict[str, object] = {"store": "sqlite", "durability": "process"}
    half, full = bench.pairs(
        ("w1", {**facts, "turns": turns // 2}),
        ("w1", {**facts, "turns": turns}),
        rounds=max(1, bench.rounds // 4),
    )
    grown = full["last_ms"] / full["first_ms"]
    line = full["bytes"] / half["bytes"]
    return [
        Row(
            name="W1 growth",
            durability="process",
            what=f"CPU of turn {turns} over turn 20",
            measured=grown,
            unit="x",
            goal="<= 1.2 x",
            kept=grown <= 1.2,
        ),
        Row(
            name="W1 disk",
            durability="process",
            what=f"bytes a turn at {turns} turns, the empty store's included",
            measured=full["bytes"] / 1e3,
            unit="kB",
            goal="<= 8 kB",
            kept=full["bytes"] <= 8e3,
        ),
        Row(
            name="W1 line",
            durability="process",
            what=f"bytes a turn at {turns} over {turns // 2} turns",
            measured=line,
            unit="x",
            goal="a straight line",
            kept=0.9 <= line <= 1.1,
        ),
    ]


def w3_rows(bench: Bench) -> list[Row]:
    """Two hundred conversations at once."""
    own, floor = bench.pairs(
        ("w3", {"conversations": 200, "turns": 5, "durability": "power"}),
        ("floor_turn", {"turns": bench.sized(1_000)}),
        rounds=max(1, bench.rounds // 4),
    )
    floor_per_s = 1e3 / floor["wall_ms"]
    return [
        Row(
            name="W3",
            durability="power",
            what="turns a second, 200 conversations x 5, power",
            measured=own["turns_per_s"],
            unit="/s",
            floor=floor_per_s,
            goal=">= 600",
            kept=own["turns_per_s"] >= 600,
        ),
        Row(
            name="W3 cpu",
            durability="power",
            what="CPU of a turn",
            measured=own["cpu_ms"],
            unit="ms",
            floor=floor["cpu_ms"],
        ),
    ]


def reopen_rows(bench: Bench, turns: tuple[int, int] = (1_000, 100_000)) -> list[Row]:
    """Reopening a short and a long store."""
    few, lots = turns[0], max(turns[0], int(turns[1] * bench.scale))
    with tempfile.TemporaryDirectory(prefix="perdure-long-") as folder:
        places = {number: Path(folder) / str(number) for number in (few, lots)}
        for number, place in places.items():
            place.mkdir(exist_ok=True)
            build_long_store(place / "long.db", number)
        gathered: dict[int, list[dict[str, float]]] = {few: [], lots: []}
        for _ in range(bench.rounds):
            for number, place in places.items():
                gathered[number].append(bench.child("reopen", place))
    short = statistics.median(one["ms"] for one in gathered[few])
    long = statistics.median(one["ms"] for one in gathered[lots])
    memory = statistics.median(one["rss_mb"] for one in gathered[lots])
    little = statistics.median(one["rss_mb"] for one in gathered[few])
    return [
        Row(
            name="reopen",
            durability="process",
            what=f"open a store of {few} turns",
            measured=short,
            unit="ms",
            goal="<= 20 ms",
            kept=short <= 20,
        ),
        Row(
            name="G8 reopen long",
            durability="process",
            what=f"the same of {lots} turns",
            measured=long,
            unit="ms",
            floor=short,
            goal="<= 1.3 x",
            kept=long <= 1.3 * short,
        ),
        Row(
            name="G10 memory",
            durability="process",
            what=f"memory of opening {lots} turns",
            measured=memory,
            unit="MB",
            floor=little,
            goal="<= 1.2 x",
            kept=memory <= 1.2 * max(little, 0.5),
        ),
    ]


def start_rows(bench: Bench) -> list[Row]:
    """Importing perdure, and asking the command for help."""
    took: dict[str, list[float]] = {"import": [], "help": [], "python": []}
    commands = {
        "import": [sys.executable, "-c", "import perdure"],
        "help": [str(Path(sys.executable).with_name("perdure")), "--help"],
        "python": [sys.executable, "-c", "import asyncio, sqlite3, msgspec, click"],
    }
    for _ in range(bench.rounds + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            took[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times[1:]) for name, times in took.items()}
    return [
        Row(
            name="import",
            what="import perdure in a new process",
            measured=medians["import"],
            unit="s",
            floor=medians["python"],
            goal="<= 0.15 s",
            kept=medians["import"] <= 0.15,
        ),
        Row(
            name="help",
            what="perdure --help",
            measured=medians["help"],
            unit="s",
            floor=medians["python"],
            goal="<= 0.2 s",
            kept=medians["help"] <= 0.2,
        ),
    ]


def command_rows(bench: Bench) -> list[Row]:
    """One durable command (G1 to G3, G21)."""
    commits = bench.sized(2_000)
    own, floor = bench.pairs(
        ("command", {"commits": commits, "durability": "process"}),
        ("floor_five", {"commits": commits}),
    )
    power, sync = bench.pairs(
        ("command", {"commits": bench.sized(500), "durability": "power"}),
        ("floor_fdatasync", {"commits": bench.sized(500)}),
    )
    payload = 1_300.0
    return [
        ratio_row(
            ("G1", "CPU of a five-row command"),
            own["cpu_us"],
            floor["cpu_us"],
            unit="us",
            most=1.6,
            durability="process",
        ),
        ratio_row(
            ("G2", "its median latency"),
            own["p50_us"],
            floor["p50_us"],
            unit="us",
            most=2.5,
            durability="process",
        ),
        ratio_row(
            ("G3", "the same, power, each a barrier"),
            power["p50_us"],
            sync["p50_us"],
            unit="us",
            most=1.5,
            durability="power",
        ),
        ratio_row(
            ("G21", "bytes of a commit over its payload"),
            own["bytes"],
            payload,
            unit="B",
            most=1.5,
            durability="process",
        ),
    ]


def watch_rows(bench: Bench) -> list[Row]:
    """Fifty watchers in the session's own process, of which ten never read (issue: at most 1.2)."""
    rows: list[Row] = []
    for durability in ("process", "power"):
        shared: Any = {"unit": "ms", "most": 1.2, "durability": durability}
        facts: dict[str, object] = {"turns": bench.sized(300), "store": "sqlite"}
        facts |= {"durability": durability}
        watched, alone = bench.pairs(("w1", {**facts, "readers": 40, "silent": 10}), ("w1", facts))
        for figure, what in (("wall_ms", "time"), ("cpu_ms", "CPU")):
            names = (f"watch 50 {what}", f"a turn's {what}: 40 watchers that read, 10 that do not")
            rows.append(ratio_row(names, watched[figure], alone[figure], **shared))
    return rows


def many_rows(bench: Bench) -> list[Row]:
    """Sixty-four sessions in one store (G4 to G6)."""
    commits = bench.sized(6_400)
    rows: list[Row] = []
    for durability, goal in (("process", 1.2), ("power", 4.0)):
        sync = "full" if durability == "power" else "normal"
        own, floor = bench.pairs(
            ("many", {"commits": commits, "durability": durability}),
            ("floor_single", {"commits": bench.sized(2_000), "sync": sync}),
            rounds=max(1, bench.rounds // 4),
        )
        rows.append(
            Row(
                name="G4",
                durability=durability,
                what="commits a second, 64 sessions",
                measured=own["per_s"],
                unit="/s",
                floor=floor["per_s"],
                goal=f">= {goal} x",
                kept=own["per_s"] >= goal * floor["per_s"],
            )
        )
    busy, quiet = bench.pairs(
        ("lateness", {"seconds": 3, "busy": "yes"}),
        ("lateness", {"seconds": 3, "busy": "no"}),
        rounds=max(1, bench.rounds // 4),
    )
    rows.append(
        Row(
            name="G5",
            durability="process",
            what="loop lateness p99 at 3,000 commits a second",
            measured=busy["p99_ms"],
            unit="ms",
            floor=quiet["p99_ms"],
            goal="<= floor + 5 ms",
            kept=busy["p99_ms"] <= quiet["p99_ms"] + 5,
        )
    )
    own, default = bench.pairs(
        ("stalls", {"commits": bench.sized(2_000), "who": "perdure"}),
        ("stalls", {"commits": bench.sized(2_000), "who": "sqlite3"}),
        rounds=max(1, bench.rounds // 4),
    )
    rows.append(
        Row(
            name="G6",
            durability="process",
            what="paced commits over 2 ms, in 1,000",
            measured=own["per_1000"],
            unit="",
            floor=default["per_1000"],
            goal="<= 0.5 x",
            kept=own["per_1000"] <= 0.5 * max(default["per_1000"], 1.0),
        )
    )
    return rows


def read_rows(bench: Bench) -> list[Row]:
    """Reads of the past, and records in memory (G7, G11 to G13, G18)."""
    reads = bench.sized(2_000)
    eight, floor_eight = bench.pairs(
        ("memory_command", {"commits": reads}), ("floor_eight", {"commits": reads})
    )
    own, floor = bench.pairs(("reads", {"reads": reads}), ("floor_reads", {"reads": reads}))
    short, long, selects = bench.pairs(
        ("context", {"reads": reads, "turns": bench.sized(600)}),
        ("context", {"reads": reads, "turns": bench.sized(6_000)}),
        ("floor_context", {"reads": reads}),
        rounds=max(1, bench.rounds // 4),
    )
    (record,) = bench.pairs(("resident", {}), rounds=1)
    flat = long["us"] / short["us"]
    return [
        ratio_row(
            ("G7", "CPU of an eight-record command, memory"),
            eight["cpu_us"],
            floor_eight["cpu_us"],
            unit="us",
            most=4,
        ),
        ratio_row(
            ("G11", "a value as of a commit"),
            own["value_us"],
            floor["value_us"],
            unit="us",
            most=3,
            durability="process",
        ),
        ratio_row(
            ("G12", "a page of 100 elements"),
            own["page_us"],
            floor["page_us"],
            unit="us",
            most=2,
            durability="process",
        ),
        ratio_row(
            ("G13", "a context list as of a commit"),
            long["us"],
            selects["us"],
            unit="us",
            most=3,
            durability="process",
        ),
        Row(
            name="G13 flat",
            durability="process",
            what="the same with ten times the history",
            measured=flat,
            unit="x",
            goal="flat",
            kept=flat <= 1.3,
        ),
        ratio_row(
            ("G18", "bytes of a resident task"),
            record["task_bytes"],
            record["plain_bytes"],
            unit="B",
            most=1.3,
        ),
    ]


def kill_rows(bench: Bench, kills: int = 100) -> list[Row]:
    """Kill a writer at random moments; count what was acknowledged and is gone (G22)."""
    chance = random.Random(SEED)
    lost = halves = commits = 0
    rounds = max(10, int(kills * bench.scale))
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="perdure-kill-") as name:
            folder = Path(name)
            kill(writer_argv(folder), folder / NOTES, cwd=ROOT, after_s=chance.uniform(0.0, 0.3))
            figures = bench.child("survived", folder)
            lost += int(figures["lost"])
            halves += int(figures["halves"])
            commits += int(figures["commits"])
    return [
        Row(
            name="G22",
            durability="process",
            what=f"of {commits} acknowledged commits lost, or half there, in {rounds} kills",
            measured=float(lost + halves),
            unit="",
            goal="0",
            kept=lost + halves == 0,
        )
    ]


GROUPS: dict[str, Callable[[Bench], list[Row]]] = {
    "start": start_rows,
    "w1": w1_rows,
    "growth": growth_rows,
    "w3": w3_rows,
    "reopen": reopen_rows,
    "command": command_rows,
    "watch": watch_rows,
    "many": many_rows,
    "reads": read_rows,
    "kills": kill_rows,
}


def main() -> None:
    """Run the chosen groups and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, with commas")
    parser.add_argument("--rounds", type=int, default=20, help="new processes a figure")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full sizes")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    options = parser.parse_args()
    chosen = options.only.split(",")
    unknown = [name for name in chosen if name not in GROUPS]
    if unknown:
        parser.error(f"no group {unknown}; there are {', '.join(GROUPS)}")
    bench = Bench(rounds=options.rounds, scale=options.scale)
    free_gib = shutil.disk_usage(tempfile.gettempdir()).free // 2**30
    sys.stdout.write(
        f"{WORKLOAD}\n{options.rounds} new processes a figure, medians; Python "
        f"{sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}; free space {free_gib} GiB\n"
    )
    rows: list[Row] = []
    for name in chosen:
        found = GROUPS[name](bench)
        rows += found
        sys.stdout.write(report(found) + "\n\n")
        sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps([facts_of(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
