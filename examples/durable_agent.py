"""A durable agent with two tools; run it again and nothing runs twice.

    python examples/durable_agent.py [STORE] [MODEL]

Without a model the scripted one plays the part. With one, as in
`python examples/durable_agent.py orders.db anthropic:claude-sonnet-4-5`, a real one decides.
"""

import sys
from typing import Annotated

import perdure
from perdure.testing.scripted_model import ScriptedModels, call, say

STOCK = {"tea": 3, "coffee": 0}


@perdure.tool(replay="safe")
def stock(item: Annotated[str, "tea or coffee"]) -> int:
    """Say how many packets of an item are there."""
    return STOCK[item]


@perdure.tool  # ordering twice would do harm, so it is not declared safe to repeat
def order(item: str, packets: int) -> str:
    """Order packets of an item."""
    print(f"ordering {packets} x {item}")
    return "ordered"


def script() -> ScriptedModels:
    """Play a model: look at both, then order what is missing."""
    return ScriptedModels(
        [
            say("Let me look.", call("stock", {"item": "tea"}), call("stock", {"item": "coffee"})),
            say(call("order", {"item": "coffee", "packets": 2})),
            say("Two packets of coffee are ordered; there is tea enough."),
        ]
    )


async def main(store: str, model: str | None) -> None:
    """Ask once; the request id makes every further run give back the first answer."""
    async with perdure.open(
        f"sqlite:{store}",
        session="pantry",
        model=model or "scripted:pantry",
        models=None if model else script(),
        tools=[stock, order],
        system_prompt="You keep the pantry filled. Two packets of everything is enough.",
    ) as harness:
        root = await harness.root()
        result = await root.prompt("Is there enough tea and coffee?", request_id="monday")
        print(f"{result.state}: {result.text}")
        print("transcript:", ", ".join(entry.kind for entry in await root.entries()))


if __name__ == "__main__":
    place, chosen = (*sys.argv[1:3], None, None)[:2]
    perdure.run(main(place or "pantry.db", chosen))
