"""What the eight core addresses that hosts may write accept (VL-32).

A setting of the wrong shape would only show when the next generation captures it, so it is refused
where it is written.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw

from perdure.errors import Rejected
from perdure.records.codec import decoder
from perdure.records.entries import ModelId
from perdure.records.settings import RetryPolicy, ThinkingLevel, ToolOrder

_ACCEPTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "perdure.model": ModelId,
        "perdure.thinking": ThinkingLevel,
        "perdure.active-tools": list[str],
        "perdure.tool-order": ToolOrder,
        "perdure.stream-options": dict[str, Any],
        "perdure.retry": RetryPolicy,
        "perdure.session.name": str,
        "perdure.entry.label": str,
    }
)


def check_core_value(namespace: str, value: Raw) -> None:
    """Refuse a value that a core address does not take; any other address takes what it likes.

    Raises:
        Rejected: `invariant`, naming address, value and fault.
    """
    accepts = _ACCEPTS.get(namespace)
    if accepts is None:
        return
    try:
        decoder(accepts).decode(value)
    except msgspec.ValidationError as error:
        shown = bytes(value).decode()[:200]
        raise Rejected("invariant", f"{namespace!r} does not take {shown}: {error}") from None
