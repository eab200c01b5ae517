"""A server of the browser tests, in a process of its own: real API, real page, scripted model.

Run as `python tests/browser/server.py STORE PORT TOKEN`; it prints one line when it listens, and
ends on TERM. What a person says picks the reply, so that every test writes its own story:

    count N, rush N     the numbers up to N, four characters each 20 or 5 ms
    pay AMOUNT TEXT     a call of `pay`, which asks first
    wait                a call of `linger`, which runs until it is aborted
    raw JSON            the parts of a reply, as they are
    anything else       is said again, with a cost
"""

import asyncio
import json
import signal
import sys
from functools import partial

import msgspec

import perdure
from perdure.opening import OpenSession, open_store, system_ports
from perdure.providers.script import Reply, call, newest_text, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.entries import ModelId
from perdure.records.messages import Cost, Part, ToolResultMessage, Usage
from perdure.records.models import ModelRequest
from perdure.records.sessions import SessionInfo
from perdure.web.app import make_app
from perdure.web.auth import tcp_doors
from perdure.web.house import House
from perdure.web.serving import listen, serving

USAGE = Usage(input=1200, output=34, cost=Cost(amount="0.0125", currency="USD", prices="2026-11"))
PAID: list[str] = []


@perdure.tool(approval="ask")
async def pay(amount: int, note: str = "") -> str:
    """Pay an amount."""
    return f"paid {amount}{note[:0]}"


@perdure.tool()
async def linger() -> str:
    """Do nothing, for long."""
    await asyncio.Event().wait()
    return "never"


@perdure.tool()
async def show(text: str) -> str:
    """Answer a text."""
    return text


def reply(request: ModelRequest) -> Reply | str:
    """Answer what the newest words ask for."""
    words = newest_text(request)
    if isinstance(request.messages[-1], ToolResultMessage):
        return say(f"The tool said: {words[:200]}", usage=USAGE)
    verb, _, rest = words.partition(" ")
    if verb in ("count", "rush"):
        text = " ".join(str(number) for number in range(1, int(rest) + 1))
        return say(text, usage=USAGE, chunk=4, delay_ms=20 if verb == "count" else 5)
    if verb == "pay":
        amount, _, note = rest.partition(" ")
        given = json.dumps({"note": note})[1:-1]
        return say(
            "I would pay.", call("pay", args_text=f'{{"amount":{amount},{given}}}'), usage=USAGE
        )
    if verb == "wait":
        return say("I will wait.", call("linger"), usage=USAGE)
    if verb == "raw":
        return say(*msgspec.json.decode(rest, type=list[Part]), usage=USAGE)
    return say(f"You said: {words}", usage=USAGE)


async def main(store: str, port: int, token: str) -> None:
    """Serve until told to end."""
    ports = system_ports()
    sessions = await asyncio.get_running_loop().run_in_executor(None, open_store, store, ports)
    models = ScriptedModels(reply)

    def opener(info: SessionInfo, _: ModelId | None) -> OpenSession:
        return perdure.open(
            store, session=info.name, sessions=sessions, create=False,
            model="scripted:x", models=models, tools=[pay, linger, show],
        )  # fmt: skip

    house = House(sessions, opener)
    listener = listen("127.0.0.1", port)
    bound: int = listener.getsockname()[1]
    doors = tcp_doors({token: "local"}, "127.0.0.1", bound)
    app = await ports.threads.run("page", partial(make_app, house, doors, ports.threads))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serving(app, [listener]):
        print(bound, flush=True)
        await stop.wait()
        house.stop()
    await house.close(grace=1)
    await sessions.close()


if __name__ == "__main__":
    perdure.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
