"""The workloads: W1 is one turn with two tools, W3 is 200 conversations at once (DESIGN 15)."""

from collections.abc import Sequence

import perdure
from perdure.harness.options import HarnessOptions
from perdure.opening import OpenSession, SilentTelemetry, system_ports
from perdure.ports import Sessions
from perdure.providers.script import Reply, call, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.messages import UserMessage
from perdure.records.models import ModelRequest, parse_model
from perdure.records.settings import GenerationSettings

RESULT = ("tool-result " * 40)[:200]
ANSWER = ("The answer is assembled from both tools. " * 20)[:500]
MODEL = "scripted:free"

WORKLOAD = (
    "W1: 85 bytes in, two tools of 200 bytes, 500 bytes out; the model answers at once; "
    "one tool is safe to repeat, one never"
)


def user_text(turn: int) -> str:
    """Answer a turn's input, about 85 bytes."""
    return f"input-{turn:05d} please look at both sources and tell me what they say about the topic"


@perdure.tool(replay="safe")
async def left(key: str) -> str:
    """Look at the left source."""
    return RESULT


@perdure.tool
async def right(key: str) -> str:
    """Look at the right source."""
    return RESULT


def decide(request: ModelRequest) -> Reply:
    """Answer a request: two calls after an input, the answer after the results."""
    if isinstance(request.messages[len(request.messages) - 1], UserMessage):
        return say(call("left", {"key": "x" * 20}), call("right", {"key": "y" * 20}))
    return say(ANSWER)


def free_models() -> ScriptedModels:
    """Make a model that costs nothing and keeps nothing of what it was asked."""
    return ScriptedModels(decide, clock=system_ports().clock)


def open_turns(url: str, *, durability: str, session: str = "bench") -> OpenSession:
    """Open a session for W1."""
    return perdure.open(
        url,
        session=session,
        model=MODEL,
        tools=[left, right],
        models=free_models(),
        durability=durability,
    )


async def open_many(
    sessions: Sessions, names: Sequence[str], *, create: bool = True
) -> list[perdure.Harness]:
    """Open many sessions of one container in this process."""
    ports = system_ports()
    options = HarnessOptions(
        models=free_models(),
        clock=ports.clock,
        randomness=ports.randomness,
        threads=ports.threads,
        telemetry=SilentTelemetry(),
        initial=GenerationSettings(model=parse_model(MODEL)),
        tools=(left, right),
    )
    return [
        await perdure.Harness.open(await sessions.open(name, create=create), options)
        for name in names
    ]
