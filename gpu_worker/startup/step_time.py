"""Finds how many tokens a step may have so that it ends within a bound of time, and pays; the caller times steps.

The usual number of tokens stays unless a larger one is clearly faster by the token: whoever comes meanwhile waits for
the step, and workers on equal machines should choose alike. Knows no engine and no clock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from gpu_worker.device.timing import PAYS

FEWEST, MOST = 256, 16384
"""Tokens of the smallest and of the largest step that is timed; each step has twice the tokens of the one before."""
FIRST, ROUNDS = 2, 2
"""Steps of a size when it is first timed, and further rounds in which sizes alternate. The shortest step of a size
counts, since other work of the machine only makes a step longer."""
LONGEST = 0.5
"""Seconds of the longest step that is timed, whatever the bound: a load should not take much longer for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The `shortest` seconds of a step, by its tokens. `usual`: tokens of a step where nothing larger pays."""

    usual: int
    bound: float = inf
    shortest: Mapping[int, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The tokens to serve with: the most that pay within the bound, the usual number at least.

        A model whose usual step takes longer than the bound keeps it too: the loop, which times each step, makes them
        shorter.
        """
        chosen = self.usual
        for tokens, seconds in sorted(self.shortest.items()):
            if tokens > chosen and seconds <= self.bound and self._by_token(tokens) < PAYS * self._by_token(chosen):
                chosen = tokens
        return chosen

    def _by_token(self, tokens: int) -> float:
        return self.shortest[tokens] / tokens

    def __str__(self) -> str:
        """The times of the usual step and of larger ones, or of the largest one that was timed."""
        shown = [tokens for tokens in sorted(self.shortest) if tokens >= self.usual] or [max(self.shortest, default=0)]
        return ", ".join(f"{tokens} tokens in {1e3 * self.shortest.get(tokens, 0.0):.0f} ms" for tokens in shown)


def find_step_times(measure: Callable[[int], float], usual: int, bound: float) -> StepTimes:
    """Times steps, twice as large each, until the next one would take longer than the bound.

    `measure`: the seconds of one step of so many tokens. `bound`: seconds. Sizes from the usual one on alternate, so
    that other work of the machine slows down all of them alike.
    """
    longest = min(bound, LONGEST)
    measure(FEWEST)  # the first step pays for what is done once
    shortest, fastest, tokens = dict[int, float](), 0.0, FEWEST
    while not shortest or (tokens <= MOST and tokens <= fastest * longest):
        shortest[tokens] = min(measure(tokens) for _ in range(FIRST))
        fastest = max(fastest, tokens / max(shortest[tokens], 1e-6))
        tokens *= 2
    compared = [tokens for tokens in shortest if tokens >= usual]
    for _ in range(ROUNDS if len(compared) > 1 else 0):
        for tokens in compared:
            shortest[tokens] = min(shortest[tokens], measure(tokens))
    return StepTimes(usual=usual, bound=bound, shortest=shortest)
