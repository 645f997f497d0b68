"""Finds how many tokens a step may have so that the largest step fits the device; the caller measures memory."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import ModelRefused

SPARE_MEMORY = 0.1
"""Part of the memory that stays free, for what no trial holds: vectors of callers, and gaps that grow with time."""
SMALLEST_STEP = 256
"""Tokens of the smallest step that is tried."""
GIBIBYTE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The memory that the largest step of so many tokens took.

    `taken`: bytes, weights included; None where the step ran out of memory. `available`: bytes that the process may
    use.
    """

    tokens: int
    taken: int | None
    available: int

    @property
    def fits(self) -> bool:
        """Whether the step fits, with something to spare."""
        return self.taken is not None and self.taken <= (1 - SPARE_MEMORY) * self.available

    def __str__(self) -> str:
        available = f"{self.available / GIBIBYTE:.1f} GiB"
        if self.taken is None:
            return f"a step of {self.tokens} tokens runs out of {available}"
        return f"a step of {self.tokens} tokens takes {self.taken / GIBIBYTE:.1f} of {available}"


def find_step_size(measure: Callable[[int], Trial], default: int, chosen: int = 0) -> list[Trial]:
    """Halves a step's tokens until it fits. The last trial is the one to serve with.

    `chosen`: the user's own number, 0 for the default. Raises ModelRefused where that number does not fit, since its
    user should know, and where the smallest step does not run. The smallest step need not leave anything to spare.
    """
    trials = [measure(chosen or default)]
    while not trials[-1].fits and trials[-1].tokens > SMALLEST_STEP:
        trials.append(measure(max(SMALLEST_STEP, trials[-1].tokens // 2)))
    first, last = trials[0], trials[-1]
    if last.taken is None:
        raise ModelRefused(f"the device has too little memory: {last}")
    if chosen and last is not first:
        raise ModelRefused(f"--step-tokens = {chosen} does not fit the device: {first}; {last.tokens} fit")
    return trials
