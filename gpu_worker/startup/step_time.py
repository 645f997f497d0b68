"""Finds how many tokens a step may have so that it ends within a bound of time, and pays; the caller times steps.

The usual number of tokens stays unless a larger one is clearly faster by the token: whoever comes meanwhile waits for
the step, and workers on equal machines should choose alike. Knows no engine and no clock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

FEWEST, MOST = 256, 16384
"""Tokens of the smallest and of the largest step that is timed; each step has twice the tokens of the one before."""
PAYS = 0.93
"""Share of a smaller step's time by the token under which a larger step pays: it makes others wait twice as long."""
FIRST, ROUNDS = 2, 3
"""Steps of a size when it is first timed (one below the usual size), and further rounds in which sizes alternate.
The second shortest counts: other work of the machine makes steps longer, and a step looks short where other threads
took more than their share."""
LONGEST = 0.5
"""Seconds of the longest step that is timed, whatever the bound: a load should not take much longer for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The `seconds` of a step, by its tokens. `usual`: tokens of a step where nothing larger pays."""

    usual: int
    bound: float = inf
    seconds: Mapping[int, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The tokens to serve with: the usual number, doubled for as long as that pays.

        A model whose usual step takes longer than the bound keeps it too: the scheduler, which times each step, makes
        them shorter.
        """
        chosen = self.usual
        while 2 * chosen in self.seconds and self._pays(2 * chosen):
            chosen *= 2
        return chosen

    def _pays(self, tokens: int) -> bool:
        """Whether a step ends within the bound and is clearly faster by the token than one of half as many tokens."""
        seconds = self.seconds[tokens]
        return seconds <= self.bound and seconds < PAYS * 2 * self.seconds[tokens // 2]

    def __str__(self) -> str:
        """The times of the usual step and of larger ones, or of the largest one that was timed."""
        shown = [tokens for tokens in sorted(self.seconds) if tokens >= self.usual] or [max(self.seconds, default=0)]
        return ", ".join(f"{tokens} tokens in {1e3 * self.seconds.get(tokens, 0.0):.0f} ms" for tokens in shown)


def find_step_times(measure: Callable[[int], float], usual: int, bound: float, most: int = MOST) -> StepTimes:
    """Times steps, twice as large each, until the next one would take longer than the bound or have more than `most`
    tokens.

    `measure`: the seconds of one step of so many tokens. `bound`: seconds. Sizes from the usual one on alternate, so
    that other work of the machine slows down all of them alike.
    """
    longest = min(bound, LONGEST)
    measure(FEWEST)  # the first step pays for what is done once
    runs, fastest, tokens = dict[int, list[float]](), 0.0, FEWEST
    while not runs or (tokens <= min(most, MOST) and tokens <= fastest * longest):
        runs[tokens] = [measure(tokens) for _ in range(FIRST if tokens >= usual else 1)]
        fastest = max(fastest, tokens / max(min(runs[tokens]), 1e-6))
        tokens *= 2
    compared = [tokens for tokens in runs if tokens >= usual]
    for _ in range(ROUNDS if len(compared) > 1 else 0):
        for tokens in compared:
            runs[tokens].append(measure(tokens))
    return StepTimes(
        usual=usual, bound=bound, seconds={tokens: sorted(times)[:2][-1] for tokens, times in runs.items()}
    )
