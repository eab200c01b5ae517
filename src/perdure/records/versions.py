"""Older payloads and states: pure functions raise them to what this release reads (FM-12).

A version goes up when a field is removed or means something else; its kind then gets one more
`Step`. Nothing stored is rewritten: what is read is raised each time, and what is written is of
the newest version.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, get_args, get_type_hints

import msgspec
from msgspec import Raw, Struct

from perdure.errors import Rejected
from perdure.records.codec import decode, decode_json, to_raw

Fields: TypeAlias = Mapping[str, Any]


class Step(Struct, frozen=True, kw_only=True):
    """The way from one version to the next.

    Attributes:
        from_version: the version it takes.
        change: answers the fields of the next version; `v` is set for it. A pure function.
        example: a record as it was stored, byte for byte.
        becomes: the same record as this step leaves it.
    """

    from_version: int
    change: Callable[[Fields], Fields]
    example: bytes
    becomes: bytes


def raised(record: Raw, steps: Sequence[Step]) -> Raw:
    """Answer a record as the newest version has it; a record of that version keeps its bytes.

    Raises:
        msgspec.ValidationError: when it is no object.
    """
    if not steps:
        return record
    fields = decode(record, dict[str, Any])
    version = fields.get("v")
    if not isinstance(version, int):
        return record
    due = [step for step in steps if step.from_version >= version]
    if not due:
        return record
    for step in due:
        fields = {**step.change(fields), "v": step.from_version + 1}
    return to_raw(fields)


def version_of(record: type[Struct]) -> int | None:
    """Answer the version a Struct writes, None when it carries none."""
    hint = get_type_hints(record).get("v")
    versions = () if hint is None else get_args(hint)
    return max(versions) if versions else None


def check_steps(record: type[Struct], steps: Sequence[Step], what: str) -> None:
    """Refuse steps with a gap, or whose example does not become what it should.

    Raises:
        Rejected: `invariant`, naming the step.
    """
    if not steps:
        return
    newest = version_of(record)
    wanted = list(range(steps[0].from_version, newest or 0))
    given = [step.from_version for step in steps]
    if given != wanted:
        raise Rejected("invariant", f"{what}: steps from {given} do not lead to version {newest}")
    for step in steps:
        _check_example(step, what)
    try:
        decode(raised(Raw(steps[0].example), steps), record)
    except msgspec.ValidationError as error:
        raise Rejected("invariant", f"{what}: the first example, raised: {error}") from None


def _check_example(step: Step, what: str) -> None:
    before = decode_json(step.example)
    after = decode_json(raised(Raw(step.example), (step,)))
    if before.get("v") != step.from_version or after != decode_json(step.becomes):
        raise Rejected(
            "invariant",
            f"{what}: the step from version {step.from_version} makes {after!r} of {before!r}",
        )
