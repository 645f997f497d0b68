"""A worker's load as it reports it to frontends, the wait that it means for a new job, and whether that is soon enough.

Standard library only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log

from shared.errors import Overloaded
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
"""Jobs of a key with fewer tokens are served one after the other, not in turns."""
SHORT_SHARE = 7
"""Tokens of short jobs of a key for each one of its long jobs, while both wait."""
MARGIN, UNREAD_MARGIN = 0.8, 0.7
"""Part of the caller's remaining time that an estimate may fill, because a worker may become a quarter slower.

Requests that have not been read yet are held to the smaller part: under load the wait settles at the part that is
checked first, and a request that is refused later was read and tokenised for nothing."""
LENIENCE = 1.05
"""A worker lets jobs wait this many times its limit. Frontends keep to the limit itself, before they read a request,
and what they know of the worker's load is a moment old."""
LEAST_RETRY, LONGEST_RETRY, UNKNOWN_RETRY = 0.1, 60.0, 1.0
"""Bounds of the time after which a refused caller is told to try again, in seconds, and that time where no wait is
known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known in advance of a job's time at a worker, in seconds.

    `wait`, the wait of a job: the most that other jobs take before it is complete, its own tokens not counted; 0 where
    unknown. `takes`: what its own tokens take; 0 where unknown.
    """

    wait: float = 0.0
    takes: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds until the job is complete."""
        return self.wait + self.takes

    @property
    def retry_after(self) -> float:
        """The time after which a refused caller is told to try again, in seconds: the wait of its job.

        It is told in tenths, so that many refusals are equal and their statuses are made once
        (`shared.server.status`).
        """
        return round(min(max(self.wait or UNKNOWN_RETRY, LEAST_RETRY), LONGEST_RETRY), 1)

    def in_time(self, remaining: float | None, margin: float = MARGIN) -> bool:
        """Whether the job may be tried with the seconds that the caller has left; None: no deadline.

        A job that is late by its own size alone is tried, since the estimate may be wrong.
        """
        return not self.wait or remaining is None or self.seconds <= margin * remaining

    def late(self, remaining: float | None, margin: float) -> Overloaded:
        """The refusal of a job that is not in time."""
        alone = f"{self.takes:.1f} s, " if round(self.takes, 1) else ""
        return Overloaded(
            f"an answer needs {alone}up to {self.seconds:.1f} s while others are served, {self.seconds / margin:.1f} s "
            f"if the worker slows down; the deadline is in {remaining:.1f} s",
            retry_after=self.retry_after,
        )

    def refusal(
        self, remaining: float | None, *, margin: float = MARGIN, limit: float = inf, lenience: float = 1.0
    ) -> tuple[str, Overloaded] | None:
        """Why a job may not be tried: the name of what it exceeds, and the error; None where it may.

        `limit`: the longest wait in seconds, which may be exceeded `lenience` times. For the rest see `in_time`.
        """
        if self.wait > lenience * limit:
            why = f"it would wait up to {self.wait:.1f} s, the limit is {limit:g} s"
            return "queue_seconds", Overloaded(why, retry_after=self.retry_after)
        return None if self.in_time(remaining, margin) else ("deadline", self.late(remaining, margin))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The waiting jobs of one priority.

    `keys`: fairness keys that have jobs waiting. `jobs`, `tokens`: how many wait, and their tokens that wait.
    `long_jobs`, `long_tokens`: those of long jobs among them.
    """

    keys: int = 0
    jobs: int = 0
    tokens: int = 0
    long_jobs: int = 0
    long_tokens: int = 0

    def before(self, tokens: int, key_tokens: int, turn: int, short: int) -> tuple[float, float]:
        """Most tokens of this backlog that are served before a new job of `tokens`; of its key, `key_tokens` wait. And
        most tokens that are, of what waits and of what other keys keep sending.

        `turn` and `short`: see `Load`. Its key's short jobs are all served before it. Its key's long jobs get a share
        beside a short new job, and no more than the new job if that is long. No other key is served more than its key,
        except for some turns (`slack`): the others may be served first, and keys that were ahead of others pay that
        back.
        """
        if self.tokens <= 2 * turn:  # all of it may be
            return self.tokens, self.tokens
        slack = turn * (3 + log(1 + self.jobs))
        of_key = min(key_tokens, self._before_in_key(tokens, slack, turn, short)) if key_tokens else 0
        share = of_key + tokens + slack
        of_others = max(0, self.keys - (key_tokens > 0)) * share
        return min(self.tokens, of_key + min(of_others, self._within(share))), of_key + of_others

    def _within(self, tokens: float) -> float:
        """Most tokens that are served if no long job is served more than `tokens`."""
        return self.tokens - self.long_tokens + min(self.long_tokens, self.long_jobs * tokens)

    def _before_in_key(self, tokens: int, slack: float, turn: int, short: int) -> float:
        """Most tokens served before a new job if all waiting jobs are of its key."""
        if tokens >= short:
            return self._within(tokens + slack)
        shorts = self.tokens - self.long_tokens
        return shorts + (shorts + tokens + short) / SHORT_SHARE + 2 * turn


@dataclass(slots=True, kw_only=True)
class Load:
    """What waits at a worker, and how fast it is served.

    `queued_tokens`: tokens that wait. `queued_jobs`: jobs that wait or are being computed. `tokens_per_second`: recent
    speed, 0 before the first step. `turn`: most tokens that a key is served in a row while others wait. `short`: jobs
    of fewer tokens are short. `draining`: the worker ends soon, no new jobs. `stalled`: why it computes nothing at the
    moment, empty if it does. `busy`: seconds until the steps under way end. `express_tokens`: most tokens of a job that
    goes ahead of longer ones in a step of small jobs alone, after one of `step_tokens` at most; 0 if none does.
    `coming`: tokens a second of the short jobs that lately came, of each priority, the highest first. `others`: seconds
    of work that other frontends than the reader lately sent in a second; 0 where not told.
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
    coming: Sequence[float] = ()
    others: float = 0.0

    def in_texts(self, ratio: float) -> "Load":
        """The load in tokens of texts, of which there are `ratio` for each token that is counted here."""
        if ratio == 1:
            return self
        backlogs = {
            of: replace(backlog, tokens=int(ratio * backlog.tokens), long_tokens=int(ratio * backlog.long_tokens))
            for of, backlog in self.backlogs.items()
        }
        queued, speed = int(ratio * self.queued_tokens), ratio * self.tokens_per_second
        coming = tuple(ratio * tokens for tokens in self.coming)
        return replace(self, queued_tokens=queued, tokens_per_second=speed, backlogs=backlogs, coming=coming)

    def estimate(self, tokens: int, priority: Priority, key_tokens: int = 0, more: int = 0) -> Estimate:
        """What a new job of `tokens` has to expect, of whose key and priority `key_tokens` wait.

        `more`: tokens that are served before it and that this load does not show. Nothing while the speed is unknown.
        """
        if not self.tokens_per_second:
            return Estimate()
        ahead, coming = self._ahead(tokens, priority, key_tokens)
        pace = self.pace(tokens, priority)
        return Estimate(wait=self.busy + (ahead + coming + more) / pace, takes=tokens / pace)

    @property
    def drained_in(self) -> float:
        """Most seconds until all that waits is served, even while short jobs keep coming; 0 while the speed is unknown.

        A quick bound of the wait of any new small job that is sent now.
        """
        if not self.tokens_per_second:
            return 0.0
        return self.busy + self.queued_tokens * (SHORT_SHARE + 1) / self.tokens_per_second

    def pace(self, tokens: int, priority: Priority) -> float:
        """Tokens a second that are left to a job of `tokens` while jobs keep coming that go first.

        These are short jobs of higher priorities, and where it is long those of its own. By what waits when they come,
        long jobs would be in time, and late after most of their work. The least that is left is the share of long jobs.
        """
        first = sum(self.coming[: priority if tokens >= self.short else priority - 1])
        return max(self.tokens_per_second - first, self.tokens_per_second / (SHORT_SHARE + 1))

    def _ahead(self, tokens: int, priority: Priority, key_tokens: int) -> tuple[int, float]:
        """Most tokens of all priorities that are served before the last step of a new job of `tokens`, if no more come.
        And the tokens of short jobs of other keys that come meanwhile and go first.

        The former are all of higher priorities, a part of its own, the share of lower ones, and what may fill up steps
        out of order: as much as a turn in each. Small jobs go ahead of long ones, unless some of a higher priority
        wait.
        """
        waiting, above, same, below, coming = 0, 0, 0.0, 0.0, 0.0
        for rank, backlog in self.backlogs.items():  # the highest first
            waiting += backlog.tokens
            if rank < priority:
                above += backlog.tokens
            elif rank == priority:
                same, most = backlog.before(tokens, key_tokens, self.turn, self.short)
                if key_tokens and most > same and tokens < self.short and self.coming:
                    coming = min(most - same, self._coming_before(same, priority, key_tokens / backlog.tokens))
            else:
                share = (same + tokens + self.turn) * WEIGHTS[rank] / WEIGHTS[priority]
                below += min(backlog.tokens, share + self.turn)
        ahead = above + same + below
        ahead += (ahead + tokens) / (TURNS_PER_STEP - 1)  # one turn of each step
        if 0 < tokens <= self.express_tokens and not above:
            ahead, coming = min(ahead, self.step_tokens + self.turn), 0.0  # none goes first
        return int(min(waiting, ahead)), coming

    def _coming_before(self, tokens: float, priority: Priority, key_share: float) -> float:
        """Tokens of other keys of a priority that come while so many tokens, and these themselves, are served.

        `key_share`: the share of what waits that is of the job's key; of what comes it is taken to be the same.
        """
        left = self.tokens_per_second - max(0.0, 1 - key_share) * self.coming[priority - 1]
        return tokens * (self.tokens_per_second / left - 1) if left > 0 else inf

    def unheard(self, age: float) -> float:
        """Seconds for which other frontends may have sent work without the reader's knowing, `age` seconds after this
        was told."""
        return age if self.queued_jobs else min(age, REPORT_SECONDS)  # it would have told of its first job
