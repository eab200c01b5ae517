"""A tool context that keeps what a tool says, for tests of tools alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.hosts.threads import DaemonThreads
from perdure.records.messages import ImagePart, Usage
from perdure.records.seqs import Seq
from perdure.records.strict_json import JsonObject, JsonValue


class KeptMemos:
    """Memos in a dictionary, which may outlive the context: a rerun finds them."""

    def __init__(self, kept: dict[str, JsonValue]) -> None:
        self.kept = kept

    async def get(self, key: str) -> JsonValue:
        return self.kept.get(key)

    async def set(self, key: str, value: JsonValue) -> None:
        self.kept[key] = value


class KeptSink:
    """Everything a tool put into its sink, uncapped."""

    def __init__(self, memos: dict[str, JsonValue]) -> None:
        self.memo = KeptMemos(memos)
        self.text = ""
        self.kept_details: Any = None
        self.images: list[ImagePart] = []
        self.is_error = False

    def write(self, text: str) -> None:
        self.text += text

    def details(self, value: JsonValue) -> None:
        self.kept_details = value

    def image(self, image: ImagePart) -> None:
        self.images.append(image)

    def error(self, *, is_error: bool = True) -> None:
        self.is_error = is_error

    def usage(self, usage: Usage) -> None:
        raise AssertionError("no tool here reports usage")

    def handoff(self, text: str) -> None:
        raise AssertionError("no tool here hands off")

    def add_tools(self, names: Sequence[str]) -> None:
        raise AssertionError("no tool here adds tools")

    def terminate(self, *, value: bool = True) -> None:
        raise AssertionError("no tool here ends a run")

    async def progress(self, partial: JsonObject) -> None:
        raise AssertionError("no tool here stores a checkpoint")


class Reader:
    """A conversation with nothing but an id."""

    def __init__(self, conv_id: int) -> None:
        self.id = Seq(conv_id)

    async def state(self) -> Any:
        raise AssertionError("no tool here reads the conversation")

    async def entry(self, entry_id: Seq) -> None:
        raise AssertionError("no tool here reads entries")

    async def task(self, task_id: Seq) -> None:
        raise AssertionError("no tool here reads tasks")


class Quiet:
    """A signal that never fires."""

    is_set = False
    reason = None

    async def wait(self) -> None:
        raise AssertionError("no tool here waits for the signal")


class Context:
    """One call of a tool, in conversation `conv_id`."""

    def __init__(
        self,
        *,
        conv_id: int = 1,
        resources: Mapping[str, object] | None = None,
        memos: dict[str, JsonValue] | None = None,
    ) -> None:
        self.signal = Quiet()
        self.invocation_id = Seq(7)
        self.call_id = "call-1"
        self.conv = Reader(conv_id)
        self.out = KeptSink({} if memos is None else memos)
        self.resources = {} if resources is None else resources
        self.threads = DaemonThreads()
