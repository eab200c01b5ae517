"""What the bug bank's cases share: a strict provider, and the last step of every case."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.harness.conversation import Conversation
from perdure.ports import Tool
from perdure.providers.script import Reply, Script, say
from perdure.providers.scripted import ScriptedModels
from perdure.records.entries import Entry
from perdure.records.messages import ToolResultMessage, Usage
from perdure.records.models import ModelRequest
from perdure.testing.strict_wire import StrictWire
from tests.engine import Engine

LAST = "one more message"
FINE = say("fine", when=LAST, uses=0)
USAGE = Usage(input=10, output=2)


class Case:
    """One case of the bank: an engine whose model sits behind the strict wire."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.wire: StrictWire
        self.root: Conversation

    async def open(
        self, script: Sequence[Reply], tools: Sequence[Tool] = (), **options: Any
    ) -> Conversation:
        """Open the session, or open it again, with replies to come."""
        models: Script = [*script, FINE]
        self.wire = StrictWire(ScriptedModels(models, clock=self.engine.clock))
        self.root = await self.engine.root(models=self.wire, tools=tools, **options)
        return self.root

    async def results(self) -> list[tuple[str, str]]:
        """Answer outcome and text of every result, in transcript order of their calls."""
        found = [entry for entry in await self.entries() if entry.kind == "tool_result"]
        found.sort(key=lambda entry: (entry.meta.answers, entry.call_index))
        return [(str(entry.meta.outcome), text_of(entry)) for entry in found]

    async def entries(self) -> Sequence[Entry]:
        """Answer the transcript."""
        return await self.root.entries(limit=1_000)

    async def patient(self, work: Any) -> Any:
        """Let something run while time goes on by itself."""
        task = self.engine.begin(work)
        while not task.done():
            due = self.engine.clock.next_due_ms()
            if due is not None:
                self.engine.clock.advance(due)
            await asyncio.sleep(0)
        return task.result()

    async def goes_on(self) -> ModelRequest:
        """The common last step: the strict wire accepts one further user message."""
        result = await self.patient(self.root.prompt(LAST))
        assert result.state == "answered", result.error
        assert result.text == "fine"
        assert not self.wire.refused
        return self.wire.accepted[-1]


def text_of(entry: Entry) -> str:
    """Join an entry's texts."""
    payload: Mapping[str, Any] = entry.payload
    message = payload.get("message") or payload["messages"][0]
    return "".join(part.get("text", "") for part in message["content"])


def results_in(request: ModelRequest) -> list[str]:
    """Answer the texts of a request's results, in order."""
    return [
        "".join(getattr(part, "text", "") for part in message.content)
        for message in request.messages
        if isinstance(message, ToolResultMessage)
    ]
