"""One comparison: several ways to the same outcome, first held against each other, then timed in turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from benchmarks import figures
from benchmarks.ablations.conditions import Conditions

Array = npt.NDArray[Any]
Outcome = Sequence[Tensor | Array]
"""Whatever a variant makes, as arrays."""
Variant = Callable[[], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Variants by name; `ours` is what this system does, and stands first.

    `given` says what they get, `counts` what each of them needs (variant -> figure -> number). Every number of every
    outcome lies within `tolerance` of that of ours, or within what `looser` has for its variant. `before` is launched
    on the device ahead of each call: then the time is what a call holds the host.
    """

    name: str
    given: dict[str, int | str]
    ours: str
    variants: dict[str, Variant]
    tolerance: float = 0.0
    looser: dict[str, float] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    before: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        assert next(iter(self.variants)) == self.ours
        assert set(self.counts) <= set(self.variants)

    def differences(self) -> dict[str, float]:
        """The largest difference of each variant's outcome from ours. Raises AssertionError over the tolerance."""
        expected = _arrays(self.variants[self.ours]())
        found = {}
        for name, variant in self.variants.items():
            outcome = expected if name == self.ours else _arrays(variant())
            assert list(map(np.shape, outcome)) == list(map(np.shape, expected)), (
                f"{self.name}: {name} has its own shape"
            )
            found[name] = max((_difference(*each) for each in zip(expected, outcome, strict=True)), default=0.0)
            assert found[name] <= self.looser.get(name, self.tolerance), f"{self.name}: {name} differs by {found[name]}"
        return found

    def measure(self, conditions: Conditions) -> dict[str, Any]:
        """Compares, then times the variants in turns, round after round."""
        differences = self.differences()
        times: dict[str, list[float]] = {name: [] for name in self.variants}
        repeats = {name: self._repeats(name, conditions) for name in self.variants}
        for _ in range(conditions.rounds):
            for name in self.variants:
                times[name].append(self._seconds(name, conditions, repeats[name]))
        return {
            "case": self.name,
            "given": self.given,
            "ours": self.ours,
            "rounds": conditions.rounds,
            "variants": {
                name: {
                    "largest_difference": differences[name],
                    "figures": {"time": figures.seconds(spent)}
                    | {what: figures.count(number) for what, number in self.counts.get(name, {}).items()},
                }
                for name, spent in times.items()
            },
            "against": {
                name: {"time": figures.against(times[self.ours], spent)}
                for name, spent in times.items()
                if name != self.ours
            },
        }

    def _repeats(self, name: str, conditions: Conditions) -> int:
        """How many calls fill a turn; the first one warms up."""
        first = self._seconds(name, conditions, 1)
        if first >= conditions.turn:
            return 1
        return max(1, min(1000, int(conditions.turn / self._seconds(name, conditions, 1))))

    def _seconds(self, name: str, conditions: Conditions, times: int) -> float:
        variant = self.variants[name]
        if self.before is None:
            return conditions.several(variant, times)
        return conditions.behind(self.before, variant, times)


def _arrays(outcome: Outcome) -> list[Array]:
    return [each.float().cpu().numpy() if isinstance(each, Tensor) else each for each in outcome]


def _difference(expected: Array, found: Array) -> float:
    return float(np.abs(expected.astype(np.float64) - found.astype(np.float64)).max(initial=0.0))
