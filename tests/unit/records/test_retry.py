"""Retries: which failures, after how long, and how often."""

import asyncio
from typing import get_args

import pytest

from perdure.errors import RETRYABLE, FailureCode, ProviderError
from perdure.records.messages import MessageError
from perdure.records.retry import (
    TryAgain,
    as_provider_error,
    classify,
    decide_retry,
    retry_delay_ms,
)
from perdure.records.seqs import Seq
from perdure.records.settings import RetryPolicy

POLICY = RetryPolicy()
TASK = Seq(7)


def delay(attempt: int, session: str = "s", task: int = 7, policy: RetryPolicy = POLICY) -> int:
    return retry_delay_ms(policy, session_id=session, task_id=Seq(task), attempt=attempt)


@pytest.mark.parametrize("attempt", range(1, 12))
def test_the_delay_doubles_to_the_cap_and_gets_at_most_a_fifth_more(attempt: int) -> None:
    plain = min(60_000, 2_000 * 2 ** (attempt - 1))
    for task in range(1, 200):
        assert plain <= delay(attempt, task=task) <= plain * 1.2


@pytest.mark.spec("GN-47")
def test_the_jitter_repeats_in_a_session_and_differs_between_sessions() -> None:
    assert delay(1) == delay(1)
    # Pinned: a later release waits as long as this one did.
    assert [delay(attempt) for attempt in (1, 2, 3)] == [2380, 4712, 8481]
    assert len({delay(1, session=f"session-{n}") for n in range(30)}) >= 20
    assert len({delay(1, task=n) for n in range(30)}) >= 20
    assert len({delay(n) - 60_000 for n in range(6, 36)}) >= 20
    spread = [delay(1, session=f"session-{n}") - 2_000 for n in range(1_000)]
    assert 0 <= min(spread) < 10
    assert 390 < max(spread) <= 400
    assert 180 < sum(spread) / len(spread) < 220


def test_extreme_attempts_and_policies_give_a_bounded_delay() -> None:
    assert 60_000 <= delay(10**9) <= 72_000
    nothing = RetryPolicy(base_delay_ms=0, max_delay_ms=0)
    assert delay(1, policy=nothing) == 0


@pytest.mark.parametrize("code", get_args(FailureCode))
def test_every_code_has_a_class(code: FailureCode) -> None:
    expected = "overflow" if code == "overflow" else "retry" if code in RETRYABLE else "fatal"
    # A fatal code stays fatal whatever the status says.
    assert classify(ProviderError(code, "m", status=429)) == expected


def test_the_codes_that_another_attempt_may_cure_are_pinned() -> None:
    assert frozenset(
        {"rate_limited", "overloaded", "server", "network", "timeout", "stream_ended",
         "interrupted"}
    ) == RETRYABLE  # fmt: skip


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (TimeoutError("t"), "timeout", "retry"),
        (ConnectionResetError("r"), "network", "retry"),
        (OSError("o"), "network", "retry"),
        (EOFError("e"), "stream_ended", "retry"),
        (asyncio.IncompleteReadError(b"", 3), "stream_ended", "retry"),
        (ValueError("v"), "invalid_request", "fatal"),
    ],
)
def test_an_unclassified_exception_gets_a_code(
    error: Exception, code: FailureCode, kind: str
) -> None:
    found = as_provider_error(error)
    assert found.code == code
    assert type(error).__name__ in found.message
    assert classify(error) == kind
    assert as_provider_error(found) is found


def decide(error: Exception, attempt: int = 1) -> TryAgain | MessageError:
    return decide_retry(error, POLICY, session_id="s", task_id=TASK, attempt=attempt)


def test_attempts_include_the_first() -> None:
    error = ProviderError("server", "down")
    assert [decide(error, n) for n in (1, 2, 3)] == [TryAgain(delay_ms=delay(n)) for n in (1, 2, 3)]
    assert decide(error, 4) == MessageError(code="server", message="down (attempt 4 of 4)")
    assert isinstance(decide(error, 5), MessageError)


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        (None, delay(1)),
        (0, delay(1)),
        (-5, delay(1)),
        (1_000, delay(1)),
        (7_000, 7_000),
        (60_000, 60_000),
    ],
)
def test_the_larger_of_delay_and_retry_after_is_waited(asked: int | None, wait: int) -> None:
    error = ProviderError("rate_limited", "slow", status=429, retry_after_ms=asked)
    assert decide(error) == TryAgain(delay_ms=wait)


def test_a_retry_after_beyond_the_longest_delay_ends_it() -> None:
    error = ProviderError("rate_limited", "slow", retry_after_ms=60_001)
    verdict = decide(error)
    assert isinstance(verdict, MessageError)
    assert verdict.code == "retry_after_too_long"
    assert "60001 ms" in verdict.message
    assert "60000" in verdict.message


@pytest.mark.parametrize("code", ["auth", "quota", "overflow", "invalid_request"])
def test_what_no_attempt_cures_keeps_its_code(code: FailureCode) -> None:
    assert decide(ProviderError(code, "m", retry_after_ms=1)) == MessageError(
        code=code, message="m"
    )
