"""How fast steps are, how large the next one may be, what keeps coming, which jobs are refused. No clock, no I/O."""

from collections import deque
from math import exp, inf

from shared.errors import Overloaded
from shared.jobs import Job
from shared.load import LENIENCE, Load

MEAN_WEIGHT = 0.9
"""Weight of earlier steps in the mean speed of a size; the latest step has the rest."""
FRESH_STEPS = 64
"""Steps for which the speed of a size is used after the last step of that size."""
SIZEABLE = 128
"""Least tokens of a step that tells how fast steps can be. A few units that are no sequences, such as comparisons of
vectors that a caller gave, say nothing of it."""
LATEST, QUICK_SHARE = 256, 0.75
"""Sizeable steps that are remembered, and the share of them that were slower than `quick`."""
LATEST_WEIGHT = 0.1
"""Weight of the latest step in what texts have for what they cost; the earlier ones have the rest."""
EXPRESS_COST = 0.1
"""Share of a full step's time that an express step before it may cost beyond its tokens' own part."""
SMALLEST_BUDGET = 256
"""Smallest budget of a step that is bounded in time: a smaller step would mostly be its own overhead."""
EFFICIENT, STRETCH = 512, 3
"""A step of fewer tokens is slower by the token, by 5 % at 256 with a large model on a processor; up to so many it may
take so many times the bound."""
RECENT_SECONDS = 1.0
"""Seconds after which work that came counts a third, where nothing else is said."""


class Pace:
    """Tokens a second, learned from steps that ended.

    A small step is slower by the token, since every step has costs of its own. So sizes are learned apart, by powers of
    two: an hour of single requests does not make a full step look slow, and short steps do not make themselves shorter.
    """

    def __init__(self) -> None:
        self._speeds: dict[int, float] = {}
        self._learned: dict[int, int] = {}
        self._steps = 0
        self._speed_of_size: dict[int, float] = {}  # what `speed` gave since the last step, by size
        self._latest: deque[float] = deque(maxlen=LATEST)  # speeds of sizeable steps

    def learn(self, tokens: int, seconds: float, *, full: bool, computed: int) -> None:
        """Learns from a step of so many tokens that took so long. `full`: whether it shows how fast steps can be.
        `computed`: how many of them it took time for."""
        size, speed = tokens.bit_length(), tokens / max(seconds, 1e-6)
        self._speeds[size] = MEAN_WEIGHT * self._speeds.get(size, speed) + (1 - MEAN_WEIGHT) * speed
        if full and computed >= SIZEABLE:
            self._latest.append(computed / max(seconds, 1e-6))
        self._steps += 1
        self._learned[size] = self._steps
        self._speed_of_size.clear()

    def speed(self, tokens: int) -> float:
        """Estimates the tokens a second in a step of so many tokens; 0 before the first step.

        Where no step of that size ended lately, it is the highest speed of that size and of smaller ones, of sizeable
        ones where there are any: a larger step is no slower by the token, and a size that was slow once must not be
        ruled out for ever. Where no smaller one is known either, it is the lowest speed of larger ones.
        """
        size = tokens.bit_length()
        if size not in self._speed_of_size:
            self._speed_of_size[size] = self._learned_speed(size)
        return self._speed_of_size[size]

    def _learned_speed(self, size: int) -> float:
        if self._is_fresh(size):
            return self._speeds[size]
        smaller = {other: speed for other, speed in self._speeds.items() if other <= size}
        sizeable = [speed for other, speed in smaller.items() if other >= SIZEABLE.bit_length()]
        return max(sizeable or smaller.values()) if smaller else min(self._speeds.values(), default=0.0)

    def _is_fresh(self, size: int) -> bool:
        """Whether a step of that size ended lately."""
        return size in self._speeds and self._steps - self._learned[size] < FRESH_STEPS

    def extra_share(self, tokens: int, step: int) -> float:
        """Tells what a step of `tokens` costs beside a step of `step` tokens, beyond what it costs to have them in that
        one: a share of the large step's time.

        Infinite before the first step. 0 where no step of that size ended lately, so that it is tried: a single slow
        one must not rule the size out for ever.
        """
        if not self._speeds:
            return inf
        if not self._is_fresh(tokens.bit_length()):
            return 0.0
        return tokens / step * (self.speed(step) / self.speed(tokens) - 1)

    @property
    def quick(self) -> float:
        """Tokens a second that a quarter of the latest sizeable steps surpassed; 0 before the first one.

        The size of steps is derived from it. The mean would not do: the busier the processor, the smaller steps would
        become, and so the slower by the token. Nor would the fastest step: one whose end was seen late makes the next
        one look fast beyond measure, and steps would be too long until that is forgotten.
        """
        speeds = sorted(self._latest)
        return speeds[int(QUICK_SHARE * (len(speeds) - 1))] if speeds else 0.0


class StepBudget:
    """The tokens of a full step, and its speed. `tokens` may be read from any thread."""

    def __init__(self, *, step_tokens: int, step_seconds: float = inf) -> None:
        """`step_tokens`: most tokens of a step. `step_seconds`: longest duration of a step of more than EFFICIENT
        tokens."""
        self._step_tokens, self._step_seconds, self._pace = step_tokens, step_seconds, Pace()
        self.tokens = min(step_tokens, SMALLEST_BUDGET) if step_seconds < inf else step_tokens
        self.texts_ratio = 1.0
        """Tokens of texts for each token that they cost, lately: more than 1 where texts share tokens."""

    @property
    def speed(self) -> float:
        """Tokens a second in a full step; 0 before the first step."""
        return self._pace.speed(self.tokens)

    def express_pays(self, tokens: int) -> bool:
        """Whether a step of these tokens alone costs little more than to compute them within a full step."""
        return self._pace.extra_share(tokens, self.tokens) <= EXPRESS_COST

    def learn(self, tokens: int, seconds: float, *, spared: int, computed: int) -> None:
        """Learns from a step that cost so many tokens how fast steps are, and how large the next one may be. `spared`:
        tokens of its texts that it did not cost. `computed`: those that it took time for; the next step may share none.
        """
        self.texts_ratio += LATEST_WEIGHT * (1 + spared / max(tokens, 1) - self.texts_ratio)
        # Smaller steps are slower by the token: with many of them, full steps would become smaller too.
        self._pace.learn(tokens, seconds, full=2 * computed >= self.tokens, computed=computed)
        if self._step_seconds < inf:
            most = int(self._pace.quick * self._step_seconds)
            self.tokens = min(max(most, min(STRETCH * most, EFFICIENT), SMALLEST_BUDGET), self._step_tokens)


QUEUED_TOKENS = 8_388_608
"""Most tokens that may wait, but one job is always taken. On a processor eight tokens that texts of a job share count
as one."""


def refusal(
    job: Job, cost: int, load: Load, *, queued_tokens: int, queue_seconds: float, of_key: int, since: int
) -> tuple[str, Overloaded] | None:
    """Why a job of `cost` tokens may not wait, as metrics name it, and its error; None where it may.

    `queued_tokens`: most tokens that may wait. `queue_seconds`: the longest wait of a job. `of_key`: tokens of its key
    that wait. `since`: tokens of the jobs that came since the load was made.
    """
    estimate, queued = load.estimate(cost, job.priority, of_key, since), load.queued_tokens + since
    if queued and queued + cost > queued_tokens:
        message = f"{queued} tokens wait, this job costs {cost}, the limit is {queued_tokens}"
        return "queued_tokens", Overloaded(message, retry_after=estimate.retry_after)
    return estimate.refusal(job.remaining, limit=queue_seconds, lenience=LENIENCE)


class RecentWork:
    """Tokens that came, each counted the less the longer ago it came."""

    def __init__(self, seconds: float = RECENT_SECONDS) -> None:
        """`seconds`: after which what came counts a third of what comes now."""
        self._seconds, self._tokens, self._since = seconds, 0.0, 0.0

    def add(self, tokens: int, now: float) -> None:
        """Counts tokens that came `now`, in seconds of any clock that never goes back."""
        self._tokens, self._since = self._left(now) + tokens, now

    def rate(self, now: float) -> float:
        """Estimates the tokens that came in a second lately."""
        return self._left(now) / self._seconds

    def _left(self, now: float) -> float:
        return self._tokens * exp((self._since - now) / self._seconds)
