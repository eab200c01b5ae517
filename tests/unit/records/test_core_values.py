"""What the core addresses that hosts may write accept."""

import pytest
from msgspec import Raw

from perdure.errors import Rejected
from perdure.records.addresses import WRITABLE_NAMESPACES
from perdure.records.core_values import check_core_value

GOOD = {
    "perdure.model": b'{"provider":"scripted","modelId":"x"}',
    "perdure.thinking": b'"high"',
    "perdure.active-tools": b'["*"]',
    "perdure.tool-order": b'"sequential"',
    "perdure.stream-options": b'{"temperature":0}',
    "perdure.retry": b'{"maxAttempts":1,"baseDelayMs":1,"maxDelayMs":2}',
    "perdure.session.name": b'"a title"',
    "perdure.entry.label": b'"before"',
}


def test_every_writable_core_address_has_a_shape() -> None:
    assert set(GOOD) == WRITABLE_NAMESPACES


@pytest.mark.parametrize("namespace", sorted(GOOD))
def test_a_core_address_takes_its_own_shape_only(namespace: str) -> None:
    check_core_value(namespace, Raw(GOOD[namespace]))
    with pytest.raises(Rejected, match=namespace):
        check_core_value(namespace, Raw(b"17"))


def test_another_address_takes_what_it_likes() -> None:
    check_core_value("mine", Raw(b"17"))
