"""Typed addresses of values and lists, and the classes of core addresses (VL-01 to VL-05, VL-32).

A token binds namespace and key once. Two addresses are equal when class, lifetime, kind,
namespace and key are equal; keys compare by UTF-8 bytes, which is code-point order.
"""

from functools import lru_cache
from typing import Final, Generic, Literal, TypeAlias, TypeVar, cast

from msgspec import UNSET, Struct, UnsetType

from perdure.errors import Rejected
from perdure.records.entries import ModelId
from perdure.records.names import stored
from perdure.records.seqs import Seq

T = TypeVar("T")

AddressKind: TypeAlias = Literal["value", "list"]


class Address(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename=stored):
    """Where a scalar or a list lives: in a conversation, a working scope, or the session."""

    kind: AddressKind
    namespace: str
    key: str = ""
    conv_id: Seq | UnsetType = UNSET
    working_scope: str | UnsetType = UNSET


def _check_name(namespace: str, key: str) -> None:
    if not namespace:
        raise Rejected("invariant", "a namespace must not be empty")
    for what, text in (("namespace", namespace), ("key", key)):
        if "\x00" in text:
            raise Rejected("invariant", f"the {what} {text!r} holds a NUL")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Rejected("invariant", f"the {what} {text!r} holds a lone surrogate") from None


class _Token(Generic[T]):
    """Hold namespace and key; equal by type and content."""

    __slots__ = ("key", "namespace")
    _core: bool = False

    def __init__(self, namespace: str, key: str = "") -> None:
        if not self._core:
            _check_name(namespace, key)
            if is_reserved(namespace):
                raise Rejected(
                    "invariant", f"the namespace {namespace!r} is reserved; use one of your own"
                )
        self.namespace = namespace
        self.key = key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Token):
            return NotImplemented
        token = cast("_Token[object]", other)
        return _family(self) is _family(token) and (self.namespace, self.key) == (
            token.namespace,
            token.key,
        )

    def __hash__(self) -> int:
        return hash((_family(self), self.namespace, self.key))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.namespace!r}, {self.key!r})"


class SessionValue(_Token[T]):
    """Typed address of a session value: latest only; no fork or rewind changes it (VL-06)."""

    __slots__ = ()

    def address(self) -> Address:
        """Answer the bound address."""
        return Address(kind="value", namespace=self.namespace, key=self.key)


class SessionList(_Token[T]):
    """Typed address of a session list: append, page, delete (VL-07)."""

    __slots__ = ()

    def address(self) -> Address:
        """Answer the bound address."""
        return Address(kind="list", namespace=self.namespace, key=self.key)


class ConversationValue(_Token[T]):
    """Typed address of a conversation value: versioned, inherited by forks (VL-08)."""

    __slots__ = ()

    def bind(self, conv_id: Seq) -> Address:
        """Answer the address in one conversation."""
        return Address(kind="value", namespace=self.namespace, key=self.key, conv_id=conv_id)


class ConversationList(_Token[T]):
    """Typed address of a conversation list: immutable elements, prefix shared by forks (VL-09)."""

    __slots__ = ()

    def bind(self, conv_id: Seq) -> Address:
        """Answer the address in one conversation."""
        return Address(kind="list", namespace=self.namespace, key=self.key, conv_id=conv_id)


class _CoreSessionValue(SessionValue[T]):
    __slots__ = ()
    _core = True


class _CoreSessionList(SessionList[T]):
    __slots__ = ()
    _core = True


class _CoreConversationValue(ConversationValue[T]):
    __slots__ = ()
    _core = True


def _family(token: _Token[T]) -> type[object]:
    for family in (SessionValue, SessionList, ConversationValue, ConversationList):
        if isinstance(token, family):
            return family
    return type(token)


SCOPE_ID_BYTES_MAX: Final = 1024


class WorkingScope(Struct, frozen=True, gc=False):
    """A named working lifetime: durable until retired, never inherited (WS-01, WS-02)."""

    id: str

    def __post_init__(self) -> None:
        """Refuse an id that is empty, too long, or not clean text (D29)."""
        _check_name(self.id, "")
        if len(self.id.encode()) > SCOPE_ID_BYTES_MAX:
            raise Rejected(
                "invariant",
                f"the scope id {self.id[:80]!r}… has {len(self.id.encode())} bytes; at most "
                f"{SCOPE_ID_BYTES_MAX} are accepted",
            )

    def value(self, namespace: str, key: str = "") -> Address:
        """Answer the address of a value of this lifetime."""
        _check_name(namespace, key)
        return Address(kind="value", namespace=namespace, key=key, working_scope=self.id)

    def list(self, namespace: str, key: str = "") -> Address:
        """Answer the address of a list of this lifetime."""
        _check_name(namespace, key)
        return Address(kind="list", namespace=namespace, key=key, working_scope=self.id)


@lru_cache(maxsize=1024)
def task_scope(task_id: Seq) -> WorkingScope:
    """Name a task's working scope; a convention that nothing parses (WS-13)."""
    return WorkingScope(str(task_id))


# Core addresses (VL-28, VL-29, VL-32).

MODEL: Final[ConversationValue[ModelId]] = _CoreConversationValue("perdure.model")
THINKING: Final[ConversationValue[str]] = _CoreConversationValue("perdure.thinking")
ACTIVE_TOOLS: Final[ConversationValue[list[str]]] = _CoreConversationValue("perdure.active-tools")
TOOL_ORDER: Final[ConversationValue[str]] = _CoreConversationValue("perdure.tool-order")
STREAM_OPTIONS: Final[ConversationValue[object]] = _CoreConversationValue("perdure.stream-options")
RETRY: Final[ConversationValue[object]] = _CoreConversationValue("perdure.retry")
SESSION_NAME: Final[SessionValue[str]] = _CoreSessionValue("perdure.session.name")
GRANTS: Final[SessionList[object]] = _CoreSessionList("perdure.grants")
USAGE: Final[SessionList[object]] = _CoreSessionList("perdure.usage")

FRAMES: Final = "perdure.pending.frames"
"""Namespace of a generation's streamed frames in its working scope; key `<attempt>.<poll>`."""
OUTPUT: Final = "perdure.pending.output"
"""Namespace of a tool's output chunks in its working scope; key is the attempt."""
PROGRESS: Final = "perdure.pending.progress"
"""Namespace of a tool's last checkpoint in its working scope."""
MEMO: Final = "perdure.pending.memo"
"""Namespace of a tool's memos in its working scope."""


def entry_label(entry_id: Seq) -> SessionValue[str]:
    """Answer the address of an entry's label."""
    return _CoreSessionValue("perdure.entry.label", str(entry_id))


def request_input(request_id: str) -> SessionValue[int]:
    """Answer the address that maps a caller's request id to what it created (ID-07, ID-10)."""
    return _CoreSessionValue("perdure.request-input", request_id)


def input_record(input_id: Seq) -> SessionValue[object]:
    """Answer the address of an input's record (D01)."""
    return _CoreSessionValue("perdure.input", str(input_id))


def creation_record(created_id: Seq) -> SessionValue[object]:
    """Answer the address of the record of what a request made, when that is no input."""
    return _CoreSessionValue("perdure.creation", str(created_id))


def settings_record(digest: str) -> SessionValue[object]:
    """Answer the address of captured settings, stored once by digest."""
    return _CoreSessionValue("perdure.settings", digest)


REFUSED: Final = "perdure.refused"
"""Namespace of the marks on parts that a provider refused (K15)."""


def refused_part(entry_id: Seq, part_index: int) -> SessionValue[object]:
    """Answer the address that marks a part a provider refused (K15)."""
    return _CoreSessionValue(REFUSED, f"{entry_id}.{part_index}")


def observed_window(model: ModelId) -> SessionValue[int]:
    """Answer the address of a model's observed context window (K27)."""
    return _CoreSessionValue("perdure.window", f"{model.provider}/{model.model_id}")


WRITABLE_NAMESPACES: Final = frozenset(
    {
        "perdure.model",
        "perdure.thinking",
        "perdure.active-tools",
        "perdure.tool-order",
        "perdure.stream-options",
        "perdure.retry",
        "perdure.session.name",
        "perdure.entry.label",
    }
)
"""The eight core namespaces that hosts may write (VL-32)."""

SEALED_NAMESPACES: Final = frozenset({"perdure.program"})
"""Core namespaces that views, plugins, watch and values never show (VL-31)."""


def is_reserved(namespace: str) -> bool:
    """Say whether a namespace belongs to the core (VL-30)."""
    return namespace == "perdure" or namespace.startswith("perdure.")


def is_host_writable(namespace: str) -> bool:
    """Say whether a host may write a namespace (VL-32)."""
    return not is_reserved(namespace) or namespace in WRITABLE_NAMESPACES


def frames_of(task_id: Seq, attempt: int, poll: int) -> Address:
    """Answer the list of one stream's frames; key `<attempt>.<poll>` (FM-09, WS-11)."""
    return task_scope(task_id).list(FRAMES, f"{attempt}.{poll}")
