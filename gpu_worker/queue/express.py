"""Express steps: the small jobs that wait, without the long work that they would share a step with. No clock, no I/O.

A call of a few tokens whose step is filled up with pieces of a long text ends when these do. In a step of its own it
ends at once, and the long text is held up by little: by what a small step costs beside its tokens. So small jobs go
first, in at most every second step.
"""

from collections.abc import Callable, Iterable, Sequence

from gpu_worker.queue.priority_class import PriorityClass
from gpu_worker.queue.waiting_job import WaitingJob

EXPRESS_SHARE = 4
"""An express step is at most this part of a step. A larger one would hold up others as a full step does."""
Pays = Callable[[int], bool]
"""Whether an express step of so many tokens is worth its time."""


def never(tokens: int) -> bool:
    """No express steps."""
    return False


class ExpressSteps:
    """Chooses the jobs of express steps among those of all classes."""

    def __init__(self, classes: Iterable[PriorityClass], quantum: int) -> None:
        """`classes`: the highest first. `quantum`: tokens of a turn; a small job has at most so many."""
        self._classes, self._quantum = list(classes), quantum
        self._latest = False  # whether the latest step was one

    def tokens_left(self, budget: int, pays: Pays) -> int:
        """Most tokens that another small job may have to be in the next express step; 0 where there is none. `budget`:
        tokens of a full step."""
        tokens = sum([priority_class.small_tokens for priority_class in self._classes])
        return max(0, self._most(budget) - tokens) if pays(max(1, tokens)) else 0

    def next_jobs(self, budget: int, pays: Pays) -> Sequence[tuple[PriorityClass, WaitingJob]]:
        """The jobs of the next step, with their classes, if it is an express step: all small ones, if these are few,
        if others wait, and if the step before was none. `budget`: tokens of a full step.

        A class below one where others wait is left out, whatever its small jobs are.
        """
        classes, others = list[PriorityClass](), False
        for priority_class in self._classes:
            classes.append(priority_class)
            if others := priority_class.tokens > priority_class.small_tokens:
                break
        tokens = sum([priority_class.small_tokens for priority_class in classes])
        self._latest = others and not self._latest and 0 < tokens <= self._most(budget) and pays(tokens)
        chosen = classes if self._latest else ()
        return [(priority_class, job) for priority_class in chosen for job in priority_class.small.values()]

    def _most(self, budget: int) -> int:
        return min(self._quantum, budget // EXPRESS_SHARE)
