"""How many tokens a step may have, so that the largest one fits the device. Pure: who measures is passed in."""

from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import ModelRefused

SPARE = 0.1
"""Of the room: for what no rehearsal holds, such as given vectors and gaps that come with time."""
LEAST_TOKENS = 256
GIBIBYTE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The largest step of so many tokens took `taken` bytes at most, weights included, of `room`; None: it ran out."""

    tokens: int
    taken: int | None
    room: int

    @property
    def fits(self) -> bool:
        """With something to spare."""
        return self.taken is not None and self.taken <= (1 - SPARE) * self.room

    def __str__(self) -> str:
        room = f"{self.room / GIBIBYTE:.1f} GiB"
        if self.taken is None:
            return f"a step of {self.tokens} tokens runs out of {room}"
        return f"a step of {self.tokens} tokens takes {self.taken / GIBIBYTE:.1f} of {room}"


def settle(measure: Callable[[int], Trial], default: int, asked: int = 0) -> list[Trial]:
    """Halves a step's tokens until it fits: the last trial is the one to serve with.

    The smallest step need only run. Raises ModelRefused where it does not, and where `asked`, which is the user's own
    number, does not fit: somebody who names it should know.
    """
    trials = [measure(asked or default)]
    while not trials[-1].fits and trials[-1].tokens > LEAST_TOKENS:
        trials.append(measure(max(LEAST_TOKENS, trials[-1].tokens // 2)))
    first, last = trials[0], trials[-1]
    if last.taken is None:
        raise ModelRefused(f"the device has too little memory: {last}")
    if asked and last is not first:
        raise ModelRefused(f"--step-tokens = {asked} does not fit the device: {first}; {last.tokens} fit")
    return trials
