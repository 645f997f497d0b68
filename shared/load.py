"""A worker's load as it reports it to frontends, and the wait that it means for a new job. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, log

from shared.jobs import Priority

WEIGHTS: Mapping[Priority, int] = {Priority.INTERACTIVE: 256, Priority.DEFAULT: 16, Priority.BULK: 1}
"""Shares of the worker while all classes wait: each is served a sixteenth of what the one above it is."""
TURNS_PER_STEP = 8
"""Turns that a step has room for. The tokens of one turn of a key, or of a long job, are an eighth of a step's.

So eight keys get into each step. The rest of a step, into which the next unit does not fit, is less than an eighth of
it, unless a unit is larger than a turn; jobs further behind fill it.
"""

REPORT_SECONDS = 0.1
"""Longest time between two reports of a worker with jobs, and from its first job to the next report."""
SHORT = 4096
"""A power of two: jobs of a key with fewer tokens are served one after the other, not in turns."""
SHORT_SHARE = 7
"""Tokens of short jobs of a key for each one of its long jobs, while both wait."""


def bucket(tokens: int) -> int:
    """The place in `Backlog.jobs` of a job with so many tokens."""
    return max(tokens, 1).bit_length() - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The waiting jobs of one priority.

    `keys`: fairness keys that have jobs waiting; `tokens`: tokens that wait; `jobs[i]`: how many jobs have 2^i to
    2^(i+1) - 1 tokens waiting.
    """

    keys: int = 0
    tokens: int = 0
    jobs: tuple[int, ...] = ()

    def within(self, tokens: float) -> float:
        """Most tokens that are served if no job is served more than `tokens`."""
        reached = sum([jobs * min((2 << place) - 1, tokens) for place, jobs in enumerate(self.jobs) if jobs])
        return min(self.tokens, reached)

    def before(self, tokens: int, key_tokens: int, turn: int, short: int) -> float:
        """Most tokens of this backlog that are served before a new job of `tokens`; of its key, `key_tokens` wait.

        `turn` and `short`: see `Load`. Its key's short jobs are all served before it. Its key's long jobs get a share
        beside a short new job, and no more than the new job if that is long. No other key is served more than its key,
        except for some turns (`slack`): the others may be served first, and keys that were ahead of others pay that
        back.
        """
        slack = turn * (3 + log(1 + sum(self.jobs)))
        of_key = min(key_tokens, self._before_in_key(tokens, slack, turn, short)) if key_tokens else 0
        other_keys = max(0, self.keys - (key_tokens > 0))
        share = of_key + tokens + slack
        return min(self.tokens, of_key + min(other_keys * share, self.within(share)))

    def _before_in_key(self, tokens: int, slack: float, turn: int, short: int) -> float:
        """Most tokens served before a new job if all waiting jobs are of its key."""
        shorts = sum([jobs * ((2 << place) - 1) for place, jobs in enumerate(self.jobs[: bucket(short)])])
        if tokens < short:
            return shorts + (shorts + tokens + short) / SHORT_SHARE + 2 * turn
        return shorts + self.within(tokens + slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What waits at a worker, and how fast it is served.

    `queued_tokens`: tokens that wait. `queued_jobs`: jobs that wait or are being computed. `tokens_per_second`: recent
    speed, 0 before the first step. `turn`: most tokens that a key is served in a row while others wait. `short`: jobs
    of fewer tokens are short. `draining`: the worker ends soon, no new jobs. `stalled`: why it computes nothing at the
    moment, empty if it does. `busy`: seconds until the steps under way end. `express_tokens`: most tokens of a job that
    goes ahead of longer ones in a step of small jobs alone, after one of `step_tokens` at most; 0 if none does.
    `slowdowns`: how many times longer than expected jobs take, by priority and whether they are long; 1 where none is
    told. `others`: seconds of work that other frontends than the reader lately sent in a second; 0 where not told.
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
    express_tokens: int = 0
    step_tokens: int = 0
    slowdowns: Mapping[tuple[Priority, bool], float] = field(default_factory=dict)
    others: float = 0.0

    def in_texts(self, ratio: float) -> "Load":
        """The load in tokens of texts, of which there are `ratio` for each token that is counted here."""
        if ratio == 1:
            return self
        backlogs = {of: replace(backlog, tokens=int(ratio * backlog.tokens)) for of, backlog in self.backlogs.items()}
        queued, speed = int(ratio * self.queued_tokens), ratio * self.tokens_per_second
        return replace(self, queued_tokens=queued, tokens_per_second=speed, backlogs=backlogs)

    def queue_tokens(self, tokens: int, priority: Priority, key_tokens: int = 0) -> float:
        """Most tokens of its own and higher priorities that are served before a new job of `tokens`.

        These are all of higher priorities and a part of its own. `key_tokens`: waiting tokens of its key and priority.
        """
        queue = self._above(priority) + self._same(tokens, priority, key_tokens)
        return min(queue, self._before_express(tokens, priority))

    def tokens_ahead(self, tokens: int, priority: Priority, key_tokens: int = 0) -> int:
        """Most tokens of all priorities that are served before the last step of a new job of `tokens`.

        It assumes that no further jobs arrive. To `queue_tokens` it adds the share of lower priorities, and what may
        fill up steps out of order: as much as a turn in each.
        """
        same = self._same(tokens, priority, key_tokens)
        queue = self._above(priority) + same
        below = sum(
            min(backlog.tokens, (same + tokens + self.turn) * WEIGHTS[other] / WEIGHTS[priority] + self.turn)
            for other, backlog in self.backlogs.items()
            if other > priority
        )
        filling = (queue + below + tokens) / (TURNS_PER_STEP - 1)  # one turn of each step
        waiting = sum(backlog.tokens for backlog in self.backlogs.values())
        return int(min(waiting, queue + below + filling, self._before_express(tokens, priority)))

    def wait(self, tokens: int, priority: Priority, key_tokens: int = 0) -> float:
        """The wait of a new job in seconds, see `shared.estimate`; 0 while the speed is unknown."""
        if not self.tokens_per_second:
            return 0.0
        return self.busy + self.tokens_ahead(tokens, priority, key_tokens) / self.tokens_per_second

    def queue_seconds(self, tokens: int, priority: Priority, key_tokens: int = 0) -> float:
        """Seconds for the running steps and for `queue_tokens`; 0 while the speed is unknown."""
        if not self.tokens_per_second:
            return 0.0
        return self.busy + self.queue_tokens(tokens, priority, key_tokens) / self.tokens_per_second

    def slowdown(self, tokens: int, priority: Priority) -> float:
        """How many times longer than expected jobs of that size and priority take lately; see `Estimate`."""
        return self.slowdowns.get((priority, tokens >= self.short), 1.0)

    def unheard(self, age: float) -> float:
        """Seconds for which other frontends may have sent work without the reader's knowing, `age` seconds after this
        was told."""
        return age if self.queued_jobs else min(age, REPORT_SECONDS)  # it would have told of its first job

    def _before_express(self, tokens: int, priority: Priority) -> float:
        """Most tokens that are served before an express step with a new job of `tokens`; infinite where it goes into
        none, as small jobs do not while longer ones of a higher priority wait."""
        if not 0 < tokens <= self.express_tokens:
            return inf
        above = [backlog for other, backlog in self.backlogs.items() if other < priority]
        longer = [sum(backlog.jobs[bucket(self.express_tokens) :]) for backlog in above]
        return inf if any(longer) else self.step_tokens + self.turn

    def _above(self, priority: Priority) -> int:
        return sum(backlog.tokens for other, backlog in self.backlogs.items() if other < priority)

    def _same(self, tokens: int, priority: Priority, key_tokens: int) -> float:
        return self.backlogs.get(priority, Backlog()).before(tokens, key_tokens, self.turn, self.short)
