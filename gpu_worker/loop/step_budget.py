"""How many tokens the next step may have, by what earlier steps took. No clock, no I/O."""

from math import inf

from gpu_worker.schedule.pace import Pace

LATEST_WEIGHT = 0.1
"""Weight of the latest step in what texts have for what they cost; the earlier ones have the rest."""
EXPRESS_COST = 0.1
"""Share of a full step's time that an express step before it may cost beyond its tokens' own part."""
SMALLEST_BUDGET = 256
"""Smallest budget of a step that is bounded in time: a smaller step would mostly be its own overhead."""
EFFICIENT, STRETCH = 512, 3
"""A step of fewer tokens is slower by the token, by 5 % at 256 with a large model on a processor; up to so many it may
take so many times the bound."""


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
