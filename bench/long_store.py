"""A long store in little time: a real turn's commits, repeated below the harness.

A few turns are run through the harness; the commits of one of them are then repeated with every
number in them moved on, so the store is what that many turns would have left. The context starts
anew every 37 turns, so that it holds up to 148 entries, as a conversation's does that is cut back
when its model's window is full.
"""

import asyncio
import re
from pathlib import Path

import msgspec

from bench.workload import open_turns, user_text
from perdure.opening import open_store, system_ports
from perdure.records.codec import decode, encode
from perdure.records.seqs import Seq
from perdure.records.writes import Commit, ResetContext

SAMPLE_TURNS = 3
TURNS_A_CONTEXT = 37
SESSION = "bench"

_NUMBER = re.compile(rb"(?<![\d\".\w-])\d+(?![\d.\w])")
_KEY = re.compile(rb'"(?:key|workingScope)":"(\d+)"')


def build_long_store(path: Path, turns: int) -> None:
    """Make a store of that many turns of W1 at `path`; durability process."""
    asyncio.run(_build(path, turns))


async def _build(path: Path, turns: int) -> None:
    url = f"sqlite:{path}"
    async with open_turns(url, durability="process", session=SESSION) as harness:
        root = await harness.root()
        bounds: list[Seq] = []
        for turn in range(SAMPLE_TURNS):
            await root.prompt(user_text(turn))
            bounds.append((await root.state()).commit_end)
        commits = await harness.commits(after=bounds[-2], limit=100)
    first, last = commits[0].first_seq, commits[-1].last_seq
    length = last - first + 1
    template = [encode(commit) for commit in commits]
    sessions = open_store(url, system_ports(), durability="process")
    storage = await sessions.open(SESSION, create=False)
    offset = storage.last_seq + 1 - first
    # A commit's time never lies below the one before; the copies all carry the newest one's.
    now_ms = storage.info.last_commit_ms
    for turn in range(turns - SAMPLE_TURNS):
        for commit in template:
            await storage.commit(_moved(commit, first, offset, now_ms), barrier=False)
        offset += length
        if turn % TURNS_A_CONTEXT == 0:
            await storage.commit(_reset(storage.last_seq, root.id, now_ms), barrier=False)
            offset += 1
    await sessions.close()


def _reset(last_seq: Seq, conv_id: Seq, time_ms: int) -> Commit:
    """Make the commit that empties a conversation's context."""
    seq = Seq(last_seq + 1)
    write = ResetContext(seq=seq, conv_id=conv_id, ids=())
    return Commit(first_seq=seq, last_seq=seq, time_ms=time_ms, writes=(write,))


def _moved(commit: bytes, first: Seq, offset: int, time_ms: int) -> Commit:
    """Move every seq of a sample commit on; numbers below the sample's first seq stay."""

    def number(match: "re.Match[bytes]") -> bytes:
        value = int(match.group())
        return str(value + offset).encode() if first <= value < 10**9 else match.group()

    def key(match: "re.Match[bytes]") -> bytes:
        value = int(match.group(1))
        moved = str(value + offset).encode() if value >= first else match.group(1)
        return match.group().replace(b'"' + match.group(1) + b'"', b'"' + moved + b'"')

    moved = decode(_KEY.sub(key, _NUMBER.sub(number, commit)), Commit)
    return msgspec.structs.replace(moved, time_ms=time_ms)
