"""`perdure diff`: how two commits of a conversation, or two forks, differ."""

import re
from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec
from msgspec import UNSET

import perdure
from perdure.cli.choices import store_of
from perdure.cli.endings import Ending, Spent, UsageProblem
from perdure.cli.last import last_of_folder
from perdure.cli.reading import reading
from perdure.cli.spending import spent_of, spent_words
from perdure.cli.surface import Surface, surfaced
from perdure.cli.tables import table
from perdure.harness.differences import Difference, Moment, Side, difference
from perdure.harness.overview import root_of
from perdure.ports import Storage
from perdure.records.codec import decode
from perdure.records.entries import Entry, preview_of
from perdure.records.messages import (
    AssistantPayload,
    SummaryPayload,
    TextPart,
    ToolResultPayload,
    UserPayload,
    read_payload,
)
from perdure.records.seqs import SEQ_MAX, Seq

SIDE: Final = re.compile(r"([1-9]\d*)?(?:@(\d+))?")


@click.command(
    help="""Show how two sides differ, each a conversation at a commit; write nothing.

    A side is ID (a conversation, as it is now), @COMMIT (the conversation of --conversation at this
    commit's end), or ID@COMMIT. Shown is what only one side has: entries, places on the context
    list, elements of lists, and values that differ. What both share is not compared.
    """
)
@surfaced("store", "session", "conversation", "config")
@click.argument("left", metavar="LEFT")
@click.argument("right", metavar="RIGHT")
def command(surface: Surface, *, left: str, right: str) -> Ending:
    """Read, compare, print."""
    sides = [_parsed(text) for text in (left, right)]

    async def run() -> tuple[str, Difference]:
        url = store_of(surface)
        name = surface.flags.session
        if name is None:
            name = await last_of_folder(url)
        async with reading(url, name) as storage:
            moments = [await _moment(storage, surface, side) for side in sides]
            return name, await difference(storage, moments[0], moments[1])

    name, found = perdure.run(run())
    return Ending(session=name, data=_document(found), text=_words(found))


def _parsed(text: str) -> tuple[Seq | None, Seq | None]:
    """Read one side; raises UsageProblem."""
    found = SIDE.fullmatch(text)
    if found is None or not text or any(int(one) > SEQ_MAX for one in found.groups() if one):
        raise UsageProblem(
            f"{text!r} is no side of a comparison", "write ID, @COMMIT or ID@COMMIT, as in 1@40"
        )
    conv_id, as_of = (None if one is None else Seq(int(one)) for one in found.groups())
    return conv_id, as_of


async def _moment(
    storage: Storage, surface: Surface, side: tuple[Seq | None, Seq | None]
) -> Moment:
    conv_id, as_of = side
    if conv_id is None:
        conv_id = None if (meant := surface.flags.conversation) is None else Seq(meant)
    if conv_id is None:
        root = await root_of(storage)
        conv_id = Seq(1) if root is None else root.id
    if as_of is None:
        as_of = await storage.boundary_at(storage.info.last_commit_ms)
    return Moment(conversation=conv_id, as_of=as_of)


def _document(found: Difference) -> dict[str, object]:
    return {
        "parted": found.parted,
        "same": found.is_none,
        "left": _side(found.left),
        "right": _side(found.right),
        "values": found.values,
        "lists": found.lists,
    }


def _side(side: Side) -> dict[str, object]:
    return {
        "conversation": side.moment.conversation,
        "as_of": side.moment.as_of,
        "entries": [
            {"id": one.id, "conversation": one.conv_id, "kind": one.kind, "text": _said(one)}
            for one in side.entries
        ],
        "context": side.context,
        "usage": spent_of(side.usage),
    }


def _words(found: Difference) -> str:
    if found.is_none:
        return "no difference\n"
    lines = [f"apart since commit {found.parted}\n"]
    for name, side in (("left", found.left), ("right", found.right)):
        lines.append(f"\n{name}: {_head(side, spent_of(side.usage))}\n")
        listed = set(side.context)
        rows = [
            (str(one.id), one.kind, "read" if one.id in listed else "-", preview_of(_said(one)))
            for one in side.entries
        ]
        if rows:
            lines.append(table(("entry", "kind", "context", "text"), rows))
        back = [str(seq) for seq in side.context if seq not in {one.id for one in side.entries}]
        if back:
            lines.append(f"read here alone: {', '.join(back)}\n")
    changes = [
        (f"{one.namespace} {one.key}".rstrip(), _json(one.left), _json(one.right))
        for one in found.values
    ] + [
        (f"{one.namespace} {one.key}".rstrip(), _count(one.left), _count(one.right))
        for one in found.lists
    ]
    if changes:
        lines.append("\n" + table(("value or list", "left", "right"), changes))
    return "".join(lines)


def _head(side: Side, spent: Spent | None) -> str:
    return (
        f"conversation {side.moment.conversation} at commit {side.moment.as_of}, "
        f"{len(side.entries)} entries of its own, spent {spent_words(spent)}"
    )


def _json(value: Any) -> str | None:
    return None if value is UNSET else preview_of(msgspec.json.encode(value).decode())


def _count(seqs: Sequence[Seq]) -> str:
    return f"{len(seqs)} more" if seqs else "-"


def _said(entry: Entry) -> str:
    """Answer what an entry says, its calls by their names."""
    if entry.payload_json is UNSET:
        return ""
    match entry.kind:
        case "assistant":
            message = read_payload(entry.payload_json, AssistantPayload).message
            return " ".join([message.text, *(f"[{call.name}]" for call in message.calls)]).strip()
        case "tool_result":
            result = read_payload(entry.payload_json, ToolResultPayload).message
            texts = [part.text for part in result.content if isinstance(part, TextPart)]
            return f"[{result.tool_name}] {' '.join(texts)}"
        case "user" | "input":
            messages = read_payload(entry.payload_json, UserPayload).messages
            return " ".join(
                part.text
                for message in messages
                for part in message.content
                if isinstance(part, TextPart)
            )
        case "summary":
            return decode(entry.payload_json, SummaryPayload).text
        case _:
            return ""
