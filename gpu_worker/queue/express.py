"""Express steps: the small jobs that wait, without the long work that they would share a step with. No clock, no I/O.

A call of a few tokens whose step is filled up with pieces of a long text ends when these do. In a step of its own it
ends at once, and the long text is held up by little: by what a small step costs beside its tokens. So small jobs go
first, in at most every second step. Those of a key that is ahead of its share wait for their turn.
"""

from collections.abc import Callable, Iterable, Sequence

from gpu_worker.queue.priority_class import PriorityClass
from gpu_worker.queue.waiting_job import WaitingJob

EXPRESS_SHARE = 4
"""An express step is at most this part of a step. A larger one would hold up others as a full step does."""
EXPRESS_COST = 0.1
"""Share of a full step's time that an express step before it may cost beyond its tokens' own part."""
MOST_JOBS = 64
"""Where more small jobs wait, there is no express step: they fill steps of their own."""
Pays = Callable[[int], bool]
"""Whether an express step of so many tokens is worth its time."""
Chosen = Sequence[tuple[PriorityClass, WaitingJob]]


def never(tokens: int) -> bool:
    """No express steps."""
    return False


class ExpressSteps:
    """Chooses the jobs of express steps among those of all classes."""

    def __init__(self, classes: Iterable[PriorityClass], small: int) -> None:
        """`classes`: the highest first. `small`: most tokens of a small job, at most a turn."""
        self._classes, self._small = list(classes), small
        self._was_express = False

    def next_jobs(self, budget: int, pays: Pays) -> Chosen:
        """The jobs of the next step, with their classes, if it is an express step: all small ones, if these are few,
        if others wait, and if the step before was none. `budget`: tokens of a full step.

        A class below one where others wait is left out, whatever its small jobs are. Every call plans a step.
        """
        if self._was_express:
            self._was_express = False
            return ()
        eligible, others = self._eligible(budget)
        chosen = [(priority_class, job) for priority_class, jobs in eligible for job in jobs]
        tokens = sum(job.tokens for _, job in chosen)
        self._was_express = others and 0 < tokens <= self._most(budget) and pays(tokens)
        return chosen if self._was_express else ()

    def tokens_left(self, budget: int, pays: Pays) -> int:
        """Most tokens that another small job may have to be in the next express step; 0 where there is none, also where
        no other work waits, and where one more job would be too many. `budget`: tokens of a full step.

        It looks at no single job, and counts all small ones down to the class in which others wait, also those that
        wait for their turn: so it tells too little sometimes, and never too much.
        """
        waiting = 0
        for priority_class in self._classes:
            if len(priority_class.small) >= MOST_JOBS:
                return 0
            waiting += priority_class.small_tokens
            if priority_class.tokens > priority_class.small_tokens:
                break
        else:
            return 0
        size = self._most(budget)
        while size > waiting and not pays(size):
            size //= 2
        return max(0, size - waiting)

    def _eligible(self, budget: int) -> tuple[list[tuple[PriorityClass, Sequence[WaitingJob]]], bool]:
        """The classes down to the first one where others than small jobs wait, each with its small jobs; and whether
        there is such a class."""
        eligible = list[tuple[PriorityClass, Sequence[WaitingJob]]]()
        for priority_class in self._classes:
            jobs = self._small_jobs(priority_class, budget)
            eligible.append((priority_class, jobs))
            if priority_class.tokens > sum(job.tokens for job in jobs):
                return eligible, True
        return eligible, False

    def _small_jobs(self, priority_class: PriorityClass, budget: int) -> Sequence[WaitingJob]:
        """The small jobs of a class that may go ahead; none where too many wait."""
        if len(priority_class.small) > MOST_JOBS:
            return ()
        most = self._most(budget)
        return [job for job in priority_class.small.values() if job.tokens <= most and not priority_class.is_ahead(job)]

    def _most(self, budget: int) -> int:
        return min(self._small, budget // EXPRESS_SHARE)
