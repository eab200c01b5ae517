"""Addresses: equal by content, closed to those who may not define or write them."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import perdure.records as front
from perdure.errors import Rejected
from perdure.records import addresses
from perdure.records.addresses import (
    SCOPE_ID_BYTES_MAX,
    Address,
    ConversationList,
    ConversationValue,
    SessionList,
    SessionValue,
    WorkingScope,
    is_host_writable,
    is_reserved,
    task_scope,
)
from perdure.records.entries import ModelId
from perdure.records.seqs import Seq

ONE = Seq(1)
TOKENS = (SessionValue, SessionList, ConversationValue, ConversationList)
BINDINGS: list[Callable[[str, str], Address]] = [
    lambda n, k: SessionValue[int](n, k).address(),
    lambda n, k: SessionList[int](n, k).address(),
    lambda n, k: ConversationValue[int](n, k).bind(ONE),
    lambda n, k: ConversationValue[int](n, k).bind(Seq(2)),
    lambda n, k: ConversationList[int](n, k).bind(ONE),
    lambda n, k: ConversationList[int](n, k).bind(Seq(2)),
    lambda n, k: WorkingScope("1").value(n, k),
    lambda n, k: WorkingScope("2").value(n, k),
    lambda n, k: WorkingScope("1").list(n, k),
]


@pytest.mark.spec("VL-01")
def test_addresses_are_equal_by_lifetime_kind_namespace_and_key() -> None:
    names = [("my", ""), ("my", "a"), ("my", "b"), ("other", "a")]
    made = [bind(*name) for bind in BINDINGS for name in names]
    assert len(set(made)) == len(made)
    assert made == [bind(*name) for bind in BINDINGS for name in names]


@pytest.mark.spec("VL-01")
def test_tokens_are_equal_by_content() -> None:
    made = [kind(*name) for kind in TOKENS for name in [("my",), ("my", "a"), ("other",)]]
    assert len(set(made)) == 12
    assert all((made[a] == made[b]) == (a == b) for a in range(12) for b in range(12))
    assert SessionValue[int]("my", "a") == SessionValue[str]("my", "a")
    assert SessionValue("my") != "my"
    assert addresses._CoreConversationValue("perdure.model") == addresses.MODEL
    assert repr(SessionValue("my", "a")) == "SessionValue('my', 'a')"


@pytest.mark.spec("VL-02")
@pytest.mark.parametrize("kind", TOKENS)
def test_bad_names_are_refused_and_the_empty_key_is_legal(kind: Any) -> None:
    assert kind("my", "") == kind("my")
    assert kind("my", "") != kind("my", "a")
    for name in (("",), ("a\x00",), ("a", "\x00"), ("\ud800",), ("a", "\udfff")):
        with pytest.raises(Rejected) as refusal:
            kind(*name)
        assert refusal.value.code == "invariant"
    for name in (("",), ("a\x00",), ("a", "\x00")):
        for make in (WorkingScope("1").value, WorkingScope("1").list):
            with pytest.raises(Rejected):
                make(*name)


@pytest.mark.spec("VL-03")
@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize("namespace", ["perdure", "perdure.x", "perdure.model"])
def test_the_reserved_namespace_is_not_for_plugins(kind: Any, namespace: str) -> None:
    with pytest.raises(Rejected, match="reserved"):
        kind(namespace)
    for free in ("perdurex", "my.perdure", "Perdure", "pi.model", "core.x"):
        assert kind(free).namespace == free
    assert is_reserved(namespace)
    assert not is_reserved("perdurex")


@pytest.mark.parametrize("scope", ["", "a\x00", "\ud800", "é" * (SCOPE_ID_BYTES_MAX // 2) + "a"])
def test_bad_scope_ids_are_refused(scope: str) -> None:
    with pytest.raises(Rejected):
        WorkingScope(scope)


def test_a_scope_id_may_be_1024_bytes_of_any_clean_text() -> None:
    assert WorkingScope("é" * (SCOPE_ID_BYTES_MAX // 2)).value("my").working_scope is not None
    assert task_scope(Seq(12)) == WorkingScope("12")


def test_an_address_is_stored_by_its_names() -> None:
    assert msgspec.to_builtins(ConversationValue[int]("my", "a").bind(ONE)) == {
        "kind": "value", "namespace": "my", "key": "a", "conv": 1,
    }  # fmt: skip
    assert msgspec.to_builtins(WorkingScope("1").list("my")) == {
        "kind": "list", "namespace": "my", "workingScope": "1",
    }  # fmt: skip


def test_core_addresses_are_importable_and_named_as_stored() -> None:
    assert front.MODEL.bind(ONE).namespace == "perdure.model"
    assert front.THINKING.namespace == "perdure.thinking"
    assert front.ACTIVE_TOOLS.namespace == "perdure.active-tools"
    assert front.SESSION_NAME.address().namespace == "perdure.session.name"
    assert front.entry_label(Seq(7)).address() == Address(
        kind="value", namespace="perdure.entry.label", key="7"
    )
    assert front.request_input("web-42").address() == Address(
        kind="value", namespace="perdure.request-input", key="web-42"
    )


def core_namespaces() -> set[str]:
    model = ModelId(provider="p", model_id="m:1")
    made = [
        addresses.entry_label(ONE), addresses.request_input("r"), addresses.input_record(ONE),
        addresses.settings_record("d"), addresses.refused_part(ONE, 2),
        addresses.observed_window(model),
    ]  # fmt: skip
    constants = [value for value in vars(addresses).values() if hasattr(value, "namespace")]
    texts = [addresses.FRAMES, addresses.OUTPUT, addresses.PROGRESS, addresses.MEMO]
    tokens = {token.namespace for token in [*made, *constants] if isinstance(token.namespace, str)}
    return tokens | set(texts) | addresses.WRITABLE_NAMESPACES | addresses.SEALED_NAMESPACES


def test_every_core_namespace_is_reserved() -> None:
    assert len(core_namespaces()) >= 18
    assert all(name.startswith("perdure.") for name in core_namespaces())


def test_hosts_may_write_exactly_eight_core_namespaces() -> None:
    assert {name for name in core_namespaces() if is_host_writable(name)} == {
        "perdure.model", "perdure.thinking", "perdure.active-tools", "perdure.tool-order",
        "perdure.stream-options", "perdure.retry", "perdure.session.name", "perdure.entry.label",
    }  # fmt: skip
    for protected in (
        "input", "request-input", "usage", "refused", "window", "grants", "job-series",
        "pending.frames", "pending.memo", "program", "whatever",
    ):  # fmt: skip
        assert not is_host_writable(f"perdure.{protected}")
    assert not is_host_writable("perdure")
    assert is_host_writable("my.own")


def test_keys_of_core_values_say_what_they_are_about() -> None:
    assert addresses.refused_part(Seq(3), 1).key == "3.1"
    assert addresses.observed_window(ModelId(provider="p", model_id="m:1")).key == "p/m:1"
    assert addresses.input_record(Seq(3)).key == "3"
    assert addresses.settings_record("abc").key == "abc"
