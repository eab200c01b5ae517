"""The lines of the report: what was measured, its floor, and whether the goal is kept."""

from collections.abc import Sequence

from msgspec import Struct


class Row(Struct, frozen=True, kw_only=True):
    """One line of the report.

    `durability` is `power` (barriers are synced), `process` (nothing is), or `none` where nothing
    durable is written; `floor` is the same work without perdure, measured in the same rounds.
    """

    name: str
    what: str
    measured: float
    unit: str
    durability: str = "none"
    floor: float | None = None
    goal: str = ""
    kept: bool | None = None

    @property
    def ratio(self) -> float | None:
        """Answer measured over floor."""
        return self.measured / self.floor if self.floor else None


def ratio_row(
    names: tuple[str, str],
    measured: float,
    floor: float,
    *,
    unit: str,
    most: float,
    durability: str = "none",
) -> Row:
    """Make a row whose goal is a ratio; `names` are its name and what it measures."""
    return Row(
        name=names[0],
        what=names[1],
        measured=measured,
        unit=unit,
        durability=durability,
        floor=floor,
        goal=f"<= {most} x",
        kept=measured <= most * floor,
    )


def report(rows: Sequence[Row]) -> str:
    """Draw the table."""
    lines = [
        f"{'row':<16}{'durability':<11}{'measured':>13}{'floor':>13}{'ratio':>7}  {'goal':<24}what"
    ]
    for row in rows:
        floor = "" if row.floor is None else f"{row.floor:,.2f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        met = {True: "kept", False: "MISSED", None: ""}[row.kept]
        goal = f"{row.goal} {met}".strip()
        lines.append(
            f"{row.name:<16}{row.durability:<11}{row.measured:>10,.2f} {row.unit:<2}{floor:>13}"
            f"{ratio:>7}  {goal:<24}{row.what}"
        )
    return "\n".join(lines)


def facts_of(row: Row) -> dict[str, object]:
    """Answer a row as plain JSON."""
    return {
        "row": row.name,
        "durability": row.durability,
        "what": row.what,
        "measured": row.measured,
        "unit": row.unit,
        "floor": row.floor,
        "ratio": row.ratio,
        "goal": row.goal,
        "kept": row.kept,
    }
