"""What an ablation is: an idea, what it stands against, what others published, and the cases that tell."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.ablations.conditions import Conditions


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A figure of somebody else, on their machine: not comparable as a number, given for its order of magnitude."""

    who: str
    what: str
    value: float
    unit: str
    source: str = "the goals of the project"

    def as_json(self) -> dict[str, Any]:
        """As the results file has it."""
        return {
            "who": self.who,
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "source": self.source,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """`measure` gives one dict a case, of the shape that `case.Case.measure` has."""

    letter: str
    idea: str
    how: str
    measure: Callable[[Conditions], Iterable[dict[str, Any]]]
    published: tuple[Published, ...] = ()
    devices: tuple[str, ...] = field(default=("cpu", "cuda"))

    def as_json(self, cases: list[dict[str, Any]]) -> dict[str, Any]:
        """As the results file has it."""
        return {
            "idea": self.idea,
            "how": self.how,
            "published": [each.as_json() for each in self.published],
            "cases": cases,
        }
