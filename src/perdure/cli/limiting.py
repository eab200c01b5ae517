"""The flags that limit what may be spent, `--max-cost` and three more (CM-19, BG-12)."""

from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any, Final

import click

from perdure.records.budgets import FIELDS, Budget

_WORDS: Final = MappingProxyType(
    {
        "cost": "Most money, as a decimal number such as 0.50.",
        "tokens": "Most tokens: input, cached and output.",
        "turns": "Most replies.",
        "seconds": "Most seconds of work; waiting is none.",
    }
)


def limiting(purpose: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the four flags, handed over as one keyword `limits`, by field.

    `purpose` says in their help what they do.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **given: Any) -> object:
            flags = {field: given.pop(f"max_{field}") for field in FIELDS}
            limits = {field: limit for field, limit in flags.items() if limit is not None}
            return command(*args, limits=limits, **given)

        wrapped: Callable[..., Any] = wraps(command)(run)
        for field in reversed(FIELDS):
            option = click.option(
                f"--max-{field}",
                f"max_{field}",
                type=str if field == "cost" else click.IntRange(min=1),
                metavar="AMOUNT" if field == "cost" else "N",
                help=f"{purpose} {_WORDS[field]}",
            )
            wrapped = option(wrapped)
        return wrapped

    return decorate


def budget_of(limits: Mapping[str, Any]) -> Budget | None:
    """Answer the budget that the flags make; None without one of them.

    Raises:
        Rejected: `invariant`, for a cost that is no decimal number above 0.
    """
    return Budget(**limits) if limits else None
