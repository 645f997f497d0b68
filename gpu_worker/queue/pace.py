"""Estimates the speed of steps by their size. No clock, no I/O."""

MEAN_WEIGHT = 0.9
"""Weight of earlier steps in the mean speed of a size; the latest step has the rest."""
FRESH_STEPS = 64
"""Steps for which the speed of a size is used after the last step of that size."""
BEST_DECAY = 0.995
"""Factor by which the fastest step's speed shrinks with every step: after five hundred steps a tenth of it is left."""


class Pace:
    """Tokens a second, learned from steps that ended.

    A small step is slower by the token, since every step has costs of its own. So sizes are learned apart, by powers of
    two: an hour of single requests does not make a full step look slow, and short steps do not make themselves shorter.
    """

    def __init__(self) -> None:
        self._speeds: dict[int, float] = {}
        self._learned: dict[int, int] = {}
        self._steps = 0
        self._best = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        """Learns from a step of so many tokens that took so long."""
        size, speed = tokens.bit_length(), tokens / max(seconds, 1e-6)
        self._speeds[size] = MEAN_WEIGHT * self._speeds.get(size, speed) + (1 - MEAN_WEIGHT) * speed
        self._best = max(self._best * BEST_DECAY, speed)
        self._steps += 1
        self._learned[size] = self._steps

    def speed(self, tokens: int) -> float:
        """Tokens a second in a step of so many tokens; 0 before the first step.

        Where no step of that size ended lately, it is the highest speed of that size and of smaller ones: a larger step
        is no slower by the token, and a size that was slow once must not be ruled out for ever. Where no smaller one is
        known either, it is the lowest speed of larger ones.
        """
        size = tokens.bit_length()
        if size in self._speeds and self._steps - self._learned[size] < FRESH_STEPS:
            return self._speeds[size]
        smaller = [speed for other, speed in self._speeds.items() if other <= size]
        return max(smaller) if smaller else min(self._speeds.values(), default=0.0)

    @property
    def best(self) -> float:
        """Tokens a second in the fastest of the latest steps; 0 before the first step.

        The size of steps is derived from it. Average speed would not do: the busier the processor, the smaller steps
        would become, and so the slower by the token.
        """
        return self._best
