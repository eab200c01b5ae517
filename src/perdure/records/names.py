"""The one map from Python field names to stored field names (K66, FM-17).

Stored names are the design's own (camelCase, short ones in the commit line). A field whose
stored name is its Python name needs no row; every other one needs a row here, or an override
at its Struct, or the import of that Struct fails: a stored name is never derived by accident.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

STORED_NAMES: Final = MappingProxyType(
    {
        "seq": "s",
        "first_seq": "f",
        "last_seq": "l",
        "time_ms": "t",
        "writes": "w",
        "conv_id": "conv",
        "written_by": "by",
        "spawned_by": "for",
        "at_entry": "at",
        "abort_requested": "abort",
        "head": "with",
        "call_index": "callIndex",
        "call_id": "callId",
        "tool_name": "toolName",
        "args_text": "argsText",
        "is_error": "isError",
        "commit_end": "commitEnd",
        "prefix_version": "prefixVersion",
        "expect_prefix_version": "expectPrefixVersion",
        "steering_mode": "steeringMode",
        "follow_up_mode": "followUpMode",
        "inherit_values": "inheritValues",
        "as_of": "asOf",
        "working_scope": "workingScope",
        "request_as_of": "requestAsOf",
        "context_tokens": "contextTokens",
        "fixed_tokens": "fixedTokens",
        "tokens_before": "tokensBefore",
        "turn_start": "turnStart",
        "as_kind": "as",
        "from_subject": "from",
        "stop_detail": "stopDetail",
        "response_id": "responseId",
        "model_id": "modelId",
        "cache_read": "cacheRead",
        "cache_write": "cacheWrite",
        "request_id": "requestId",
        "not_before": "notBefore",
        "post_tools": "postTools",
        "overflow_retried": "overflowRetried",
        "max_attempts": "maxAttempts",
        "base_delay_ms": "baseDelayMs",
        "max_delay_ms": "maxDelayMs",
        "active_tools": "activeTools",
        "tool_order": "toolOrder",
        "stream_options": "streamOptions",
        "meta_json": "meta",
        "payload_json": "payload",
        "state_json": "state",
        "value_json": "value",
        "withdrawn_by": "by",
        "poll_after_ms": "pollAfterMs",
        "expires_at_ms": "expiresAt",
        "allowed_by": "allowedBy",
        "asked_ms": "asked",
        "add_tools": "addTools",
        "timed_out": "timedOut",
        "on_limit": "onLimit",
        "worked_ms": "workedMs",
        "adapter_version": "n",
        "provider_name": "p",
        "api_name": "a",
        "opaque_data": "d",
        "delta_text": "d",
        "part_index": "i",
        "frames": "f",
    }
)
"""Python field name to stored field name, for every field where the two differ."""


def stored_as(**overrides: str) -> Callable[[str], str]:
    """Answer the `rename` function of a Struct: this map, with `overrides` for one Struct.

    Raises KeyError while the Struct is defined when a name with an underscore has no row.
    """

    def rename(name: str) -> str:
        if name in overrides:
            return overrides[name]
        return STORED_NAMES[name] if "_" in name or name in STORED_NAMES else name

    return rename


stored: Final = stored_as()
"""The map without overrides."""
