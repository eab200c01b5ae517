"""The only witness of what really happened: one line in a file for each execution.

The file lies outside the store and is opened so that a write returns once it is on disk: a
line that was written survives SIGKILL and a power cut, and nothing else writes it.
"""

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from perdure.ports import Replay, ToolContext
from perdure.toolkits.define import FunctionTool, tool

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_SYNC | os.O_CLOEXEC


class EffectCounter:
    """Append a line for each execution of a named effect; count the lines."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def add(self, name: str) -> None:
        """Write one line, on disk when this returns; safe from threads and processes."""
        if "\n" in name or not name:
            raise ValueError(f"effect name {name!r}; accepted: one line of text")
        file = os.open(self.path, _FLAGS, 0o600)
        try:
            # One write of a short line is appended whole, whoever else appends.
            os.write(file, f"{name}\n".encode())
        finally:
            os.close(file)

    def counts(self) -> Counter[str]:
        """Answer how often each effect was executed."""
        if not self.path.exists():
            return Counter()
        return Counter(self.path.read_text(encoding="utf-8").splitlines())

    def count(self, name: str) -> int:
        """Answer how often one effect was executed."""
        return self.counts()[name]

    def tool(
        self,
        name: str = "act",
        *,
        replay: Replay = "never",
        between: Callable[[], Awaitable[Any]] | None = None,
    ) -> FunctionTool:
        """Make a tool whose every execution counts as `<name>:<key>`.

        Args:
            name: what the model calls it.
            replay: its declaration.
            between: awaited after the effect and before the answer, so that a test can kill there.
        """

        @tool(name=name, replay=replay)
        async def act(key: str = "", *, ctx: ToolContext) -> str:
            """Act on the world, once."""
            await ctx.threads.run(name, partial(self.add, f"{name}:{key}"))
            if between is not None:
                await between()
            return f"acted on {key}"

        return act
