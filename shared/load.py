"""How busy a worker is, as it tells its frontends, and what a new job has to expect. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log

from shared.jobs import Priority

WEIGHTS: Mapping[Priority, int] = {Priority.INTERACTIVE: 256, Priority.DEFAULT: 16, Priority.BULK: 1}
"""Shares of the worker while all classes wait: each is served a sixteenth of what the one above it is."""

SHORT = 4096
"""A power of two: jobs of a key with fewer tokens are served one after the other, not in turns."""
SHORT_SHARE = 7
"""Tokens of short jobs of a key for each one of its long jobs, while both wait."""


def bucket(tokens: int) -> int:
    """The place in `Backlog.jobs` of a job with so many tokens."""
    return max(tokens, 1).bit_length() - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits of one priority.

    `keys`: fairness keys that have jobs waiting; `tokens`: of all of them; `jobs[i]`: how many jobs have 2^i to
    2^(i+1) - 1 tokens waiting.
    """

    keys: int = 0
    tokens: int = 0
    jobs: tuple[int, ...] = ()

    def within(self, tokens: float) -> float:
        """At most what the jobs are served if none is served more than `tokens`."""
        reached = sum([jobs * min((2 << place) - 1, tokens) for place, jobs in enumerate(self.jobs) if jobs])
        return min(self.tokens, reached)

    def before(self, tokens: int, own: int, turn: int, short: int) -> float:
        """At most what is served of them before a new job of `tokens`, of whose key `own` tokens wait.

        Of that key all short jobs; of its long ones, what they get beside a short job, or no more each than a long one.
        No other key is served more than that key; but for `slack`, since turns are `turn` tokens long and what earlier
        jobs were served ahead of others is paid back.
        """
        slack = turn * (3 + log(1 + sum(self.jobs)))
        mine = min(own, self._mine(tokens, slack, turn, short)) if own else 0
        others = max(0, self.keys - (own > 0))
        share = mine + tokens + slack
        return min(self.tokens, mine + min(others * share, self.within(share)))

    def _mine(self, tokens: int, slack: float, turn: int, short: int) -> float:
        """If all were of the key of a new job."""
        shorts = sum([jobs * ((2 << place) - 1) for place, jobs in enumerate(self.jobs[: bucket(short)])])
        if tokens < short:
            return shorts + (shorts + tokens + short) / SHORT_SHARE + 2 * turn
        return shorts + self.within(tokens + slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Tokens that wait, jobs that wait or are being computed, recent speed (0 before the first step).

    `turn`: most tokens that a key is served in a row while others wait; `short`: jobs of fewer
    tokens are short. `draining`: the worker ends soon, no new jobs.
    `stalled`: why it computes nothing at the moment, empty if it does.
    `busy`: seconds until the steps under way end.
    """

    queued_tokens: int = 0
    queued_jobs: int = 0
    tokens_per_second: float = 0.0
    backlogs: Mapping[Priority, Backlog] = field(default_factory=dict)
    turn: int = 2048
    short: int = SHORT
    draining: bool = False
    stalled: str = ""
    busy: float = 0.0

    def queue(self, tokens: int, priority: Priority, own: int = 0) -> float:
        """At most what is served before a new job of `tokens`, without lower classes.

        All of the classes above, and of its own what goes before it. `own`: tokens of its fairness key that wait there.
        """
        return self._above(priority) + self._same(tokens, priority, own)

    def ahead(self, tokens: int, priority: Priority, own: int = 0) -> int:
        """At most what is served before the last step of a new job of `tokens`, if nothing else comes.

        Its queue and the share of lower classes; an eighth of each step may go to others because nothing else fits.
        """
        same = self._same(tokens, priority, own)
        queue = self._above(priority) + same
        below = sum(
            min(each.tokens, (same + tokens + self.turn) * WEIGHTS[other] / WEIGHTS[priority] + self.turn)
            for other, each in self.backlogs.items()
            if other > priority
        )
        filling = (queue + below + tokens) / 7
        return int(min(sum(each.tokens for each in self.backlogs.values()), queue + below + filling))

    def wait(self, tokens: int, priority: Priority, own: int = 0) -> float:
        """Seconds until a new job's turn at the latest, its own tokens not counted; 0 while the speed is unknown."""
        if not self.tokens_per_second:
            return 0.0
        return self.busy + self.ahead(tokens, priority, own) / self.tokens_per_second

    def queue_seconds(self, tokens: int, priority: Priority, own: int = 0) -> float:
        """Seconds of `queue`, and of the steps under way; 0 while the speed is unknown."""
        if not self.tokens_per_second:
            return 0.0
        return self.busy + self.queue(tokens, priority, own) / self.tokens_per_second

    def _above(self, priority: Priority) -> int:
        return sum(each.tokens for other, each in self.backlogs.items() if other < priority)

    def _same(self, tokens: int, priority: Priority, own: int) -> float:
        return self.backlogs.get(priority, Backlog()).before(tokens, own, self.turn, self.short)
