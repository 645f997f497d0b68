"""How long an encoder's steps take on an accelerator, measured at load: there a step that shares tokens has other forms
than one of whole texts, and may take longer although it computes less. numpy only."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

LEAST_SHARE = 0.125
"""Share of a step's tokens that must be spared: keys, values and rows of its other texts are copied then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingTimes:
    """Seconds of steps of so many `tokens` (ascending): of whole texts, and of texts that share tokens, where those
    that are shared do not count."""

    tokens: Sequence[int]
    whole: Sequence[float]
    sharing: Sequence[float]

    def least_spared(self, tokens: int, pays: float) -> float:
        """The smallest part of the tokens of a step of whole texts whose sharing brings its time below the part `pays`
        of that without, LEAST_SHARE or more; `inf`: none does. Longer steps than were measured take as much longer as
        they have more tokens."""
        tokens = min(max(tokens, 1), self.tokens[-1])
        wanted = pays * float(np.interp(tokens, self.tokens, self.whole))
        times = np.maximum.accumulate(self.sharing)  # a shorter step that took longer was disturbed
        if wanted < times[0]:
            return inf
        return max(LEAST_SHARE, 1 - float(np.interp(wanted, times, self.tokens)) / tokens)
