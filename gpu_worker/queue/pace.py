"""How fast steps are, by their size. Pure; no clock."""

MEMORY, FRESH = 0.9, 64
FORGET = 0.995
"""Of the fastest steps, with every step: after five hundred, one in ten of it is left."""


class Pace:
    """Tokens a second, learned from steps that ended.

    Small steps are slower by the token, since each has costs of its own. So sizes are kept apart, by powers of two: an
    hour of single requests does not make a full step look slow, and short steps do not make themselves shorter.
    """

    def __init__(self) -> None:
        self._speeds: dict[int, float] = {}
        self._learned: dict[int, int] = {}
        self._steps = 0
        self._best = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        size, speed = tokens.bit_length(), tokens / max(seconds, 1e-6)
        self._speeds[size] = MEMORY * self._speeds.get(size, speed) + (1 - MEMORY) * speed
        self._best = max(self._best * FORGET, speed)
        self._steps += 1
        self._learned[size] = self._steps

    def speed(self, tokens: int) -> float:
        """Of a step of so many tokens; 0 before the first step.

        If none of that size ended of late, the fastest of it and of smaller ones: a larger step is no slower by the
        token, and what was slow once must not rule a size out for ever.
        """
        size = tokens.bit_length()
        if size in self._speeds and self._steps - self._learned[size] < FRESH:
            return self._speeds[size]
        smaller = [speed for other, speed in self._speeds.items() if other <= size]
        return max(smaller) if smaller else min(self._speeds.values(), default=0.0)

    @property
    def best(self) -> float:
        """Of the fastest steps of late; 0 before the first.

        It says how large a step may be. By what they take while others want the processor, steps would become smaller
        the busier it is, and so slower by the token.
        """
        return self._best
