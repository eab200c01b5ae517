"""Make the frozen container of a release: `python -m tests.format.make_sqlite`.

Run once for a release, by the release itself; the file is then never edited. One session a
moment: each ends as a kill there would leave it, so that together they hold a live task of every
kind in every status the release ever wrote. `waiting` and `finishing` calls are not among them:
approvals and hooks bring these statuses, and no release before has written one.
"""

import asyncio
import hashlib
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import perdure
from perdure.ports import ToolContext
from perdure.providers.script import Deferred, Failure, Reply, call, say, think
from perdure.records.addresses import ConversationList, ConversationValue, SessionValue
from perdure.records.codec import to_raw
from perdure.records.images import image_part
from perdure.records.messages import Extra, OpaquePart, TextPart, Usage, UserMessage
from perdure.records.writes import Commit, InsertEntry, InsertTask
from perdure.toolkits.define import Output
from tests.engine import CountedTokens, Engine, Gate, Probe, is_main, task_moves

FOLDER: Final = Path(__file__).parent
PIXEL: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c6360f8ffff3f0005fe02fe0def46b80000000049454e44ae426082"
)
USED: Final = Usage(input=100, output=20, cache_read=3)


def _inserts(kind: str) -> Callable[[Commit], bool]:
    def match(commit: Commit) -> bool:
        return any(
            isinstance(write, InsertEntry | InsertTask) and write.kind == kind
            for write in commit.writes
        )

    return match


async def accepted(engine: Engine) -> None:
    """Leave a generation pending."""
    root = await engine.root()
    await root.accept("What time is it?", request_id="web-1")


async def retrying(engine: Engine) -> None:
    """Leave a generation waiting for its second attempt."""
    root = await engine.root([Reply(failure=Failure(code="overloaded"), usage=USED)])
    engine.begin(root.prompt("Try hard"))
    await engine.storage.until(task_moves("retry_wait"))


async def deferred(engine: Engine) -> None:
    """Leave a generation whose answer comes later."""
    root = await engine.root([say("at last", deferred=Deferred(polls=1, poll_after_ms=1_000))])
    await root.accept("No hurry")
    await root.drive(wait_timers=False)


async def polling(engine: Engine) -> None:
    """Leave a generation in the middle of a poll."""
    gates = {1: Gate()}
    root = await engine.root([say("at last", deferred=Deferred(poll_after_ms=1_000, gates=gates))])
    await root.accept("No hurry")
    await root.drive(wait_timers=False)
    engine.clock.advance(1_000)
    engine.begin(root.drive(poll_deferred=True))
    await gates[1].reached.wait()


async def streaming(engine: Engine) -> None:
    """Leave a generation with half its answer in frames, and a follow-up queued behind it."""
    gate = Gate()
    reply = say(think("hm, "), "It is half past", chunk=5, gates={5: gate})
    root = await engine.root([reply])
    engine.begin(root.prompt("What time is it?"))
    await gate.reached.wait()
    await engine.storage.until(lambda commit: not is_main(commit))
    await root.follow_up("And tomorrow?")
    await root.append_message("By the way, it rains.")


async def calling(engine: Engine) -> None:
    """Leave one call running that may run again, and one that may not, with output so far."""
    gates = Gate(), Gate()

    async def talk(args: Mapping[str, Any], ctx: ToolContext) -> object:
        ctx.out.write("three of ten")
        await ctx.out.progress({"done": 3})
        await gates[0]()
        return None

    tools = [Probe("pay", body=talk), Probe("look", replay="safe", gate=gates[1])]
    root = await engine.root(
        [say("Both.", call("pay", {"amount": 10**20}), call("look"), usage=USED)], tools=tools
    )
    engine.begin(root.prompt("Pay and look"))
    await asyncio.gather(*[gate.reached.wait() for gate in gates])
    await engine.storage.until(lambda commit: not is_main(commit))


async def queueing(engine: Engine) -> None:
    """Leave one call planned behind another, and their join pending."""
    gate = Gate()
    tools = [Probe("first", gate=gate), Probe("second")]
    root = await engine.root(
        [say(call("first"), call("second"))], tools=tools, settings={"tool_order": "sequential"}
    )
    engine.begin(root.prompt("One after the other"))
    await gate.reached.wait()


async def truncated(engine: Engine) -> None:
    """Leave a call that was cut off with the reply that asked for it."""
    root = await engine.root(
        [say("I will", call("pay", args_text='{"amount": 1'), stop="length")], tools=[Probe("pay")]
    )
    engine.storage.hold(_inserts("tool_result"))
    engine.begin(root.prompt("Pay"))
    await engine.storage.until(task_moves("truncated"))


async def joining(engine: Engine) -> None:
    """Leave a join alone: its calls have settled."""
    gate = Gate()
    root = await engine.root([say(call("look"))], tools=[Probe("look", gate=gate)])
    engine.begin(root.prompt("Look"))
    await gate.reached.wait()
    held = engine.storage.hold(_inserts("generation"))
    gate.open()
    await held.reached.wait()


async def settled(engine: Engine) -> None:
    """Leave nothing live, and one of everything a conversation can hold."""

    async def draw(args: Mapping[str, Any], ctx: ToolContext) -> object:
        ctx.out.write("0123456789" * 40)
        ctx.out.image(image_part(PIXEL))
        ctx.out.details({"n": 9007199254740993, "text": "Grüße \U0001f600", "none": None})
        ctx.out.usage(Usage(input=1))
        return None

    async def hand(args: Mapping[str, Any], ctx: ToolContext) -> object:
        ctx.out.handoff("What was said so far, in short.")
        return None

    opaque = OpaquePart(
        x=Extra(provider_name="p", api_name="a", adapter_version=1, opaque_data=to_raw({"k": [1]}))
    )
    tools = [Probe("draw", body=draw, output=Output(bytes_max=64)), Probe("hand", body=hand)]
    script = [
        say(think("a thought"), "Drawing.", call("draw", {"what": "cat"}), opaque, usage=USED),
        say("Done.", usage=USED),
        say(call("hand"), call("nothing")),
        say("Handed over."),
        Reply(parts=(TextPart(text="ha"),), failure=Failure(code="content_filter", at=2)),
    ]
    root = await engine.root(script, tools=tools, system_prompt="Be brief.")
    image = UserMessage(content=(TextPart(text="like this"), image_part(PIXEL)))
    await root.prompt(image, request_id="key-1")
    await root.prompt("\x00 and \ud800")
    await root.prompt("this fails")
    await root.next_run("Later, perhaps.")
    await root.set_value(ConversationValue("app.note"), {"a": [1, None, "x"]})
    await engine.harness.set_value(SessionValue("app.count"), 2**64)
    for number in range(3):
        await root.append_list(ConversationList("app.log"), number, tag=f"t{number}")


MOMENTS: Final[Mapping[str, Callable[[Engine], Awaitable[None]]]] = MappingProxyType(
    {
        moment.__name__: moment
        for moment in (
            accepted, retrying, deferred, polling, streaming, calling, queueing, truncated,
            joining, settled,
        )
    }
)  # fmt: skip


class NamedTokens(CountedTokens):
    """Random text that is the same at every making, and another for every session."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._salt = hashlib.sha256(name.encode()).hexdigest()

    def token(self, nbytes: int) -> str:
        number = super().token(nbytes)
        return self._salt[: len(number) // 2] + number[len(number) // 2 :]


class AtMoment(Engine):
    """An engine on the session of one moment."""

    def __init__(self, folder: Path, session: str) -> None:
        super().__init__("sqlite", folder)
        self.tokens = NamedTokens(session)
        self.sessions = self._container(folder)
        self.session = session

    async def open(self, script: Any = (), **options: Any) -> perdure.Harness:
        return await super().open(script, session=self.session, **options)


async def make(folder: Path) -> None:
    """Play every moment into one container."""
    for name, moment in MOMENTS.items():
        engine = AtMoment(folder, name)
        await moment(engine)
        await engine.kill()
        await engine.sessions.close()


def anonymous(store: Path) -> None:
    """Take out who made it and where, and what is free."""
    with sqlite3.connect(store, isolation_level=None) as conn:
        conn.execute("UPDATE session SET owner=NULL")
        conn.execute("UPDATE opening SET pid=1, host='host'")
        conn.execute("VACUUM")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn.close()


def main() -> None:
    """Write `<version>.sqlite`; a file that is there is never touched."""
    target = FOLDER / f"{version('perdure')}.sqlite"
    if target.exists():
        sys.exit(f"{target.name} is frozen: it is never made again")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store.db"
        asyncio.run(make(Path(folder)))
        anonymous(store)
        shutil.copy(store, target)
    target.chmod(0o644)
    sys.stdout.write(f"{target.name}: {target.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
