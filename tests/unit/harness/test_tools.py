"""What may be handed over as a tool."""

from typing import Any, cast

import pytest

import perdure
from perdure.errors import Rejected
from perdure.harness.options import registry


async def bare() -> str:
    """Do something."""
    return "done"


@perdure.tool
async def made() -> str:
    """Do something."""
    return "done"


def test_a_bare_function_is_named_with_the_way_to_make_it_a_tool() -> None:
    with pytest.raises(Rejected, match=r"bare.*@perdure\.tool"):
        registry([cast("Any", bare)])


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(Rejected, match="made"):
        registry([made, made])
