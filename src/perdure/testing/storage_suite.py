"""The law of storage, as checks that any backend can be held to.

Each check is a public async function of one `Lab` in `storage_checks`, named after the law it
holds, its docstring opening with the requirements it covers. A backend passes when every check of
`CHECKS` passes; `run` gives one check a fresh place. No test runner is needed::

    for check in CHECKS:
        asyncio.run(run(check, MyPlace(tmp / check.__name__)))

A fake, and a wrapper that injects faults, are held to the same law.
"""

from collections.abc import Awaitable, Callable, Iterator
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Final, TypeAlias

from perdure.testing.storage_checks import commits, reads, sessions, values
from perdure.testing.storage_lab import CountedRandomness as CountedRandomness
from perdure.testing.storage_lab import Lab as Lab
from perdure.testing.storage_lab import Place as Place

Check: TypeAlias = Callable[[Lab], Awaitable[None]]


def _checks_of(module: ModuleType) -> Iterator[Check]:
    for value in vars(module).values():
        if (
            iscoroutinefunction(value)
            and value.__module__ == module.__name__
            and list(value.__annotations__) == ["lab", "return"]
            and not value.__name__.startswith("_")
        ):
            yield value


CHECKS: Final[tuple[Check, ...]] = tuple(
    check for module in (commits, reads, values, sessions) for check in _checks_of(module)
)
"""Every check, in the order of reading."""


async def run(check: Check, place: Place) -> None:
    """Run one check on a fresh place; raises AssertionError when the backend breaks the law."""
    lab = Lab(place)
    await lab.start()
    try:
        await check(lab)
    finally:
        await lab.stop()
