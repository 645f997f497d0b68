"""The priority classes and their shares of the worker: which of them is served next. No clock, no I/O."""

from collections.abc import Iterator

from gpu_worker.queue.priority_class import Key, PriorityClass
from gpu_worker.queue.waiting_job import WaitingJob
from shared.jobs import Priority
from shared.load import TURNS_PER_STEP, WEIGHTS, Backlog

LEAD_STEPS = 2
"""Steps of interactive jobs that are served in a row before lower classes get what is theirs.

With fewer, jobs of lower classes would be computed among those of a burst; with more, lower classes would stand still
for longer."""


class PriorityClasses:
    """The classes of all priorities. Iteration gives them, the highest first."""

    def __init__(self, quantum: int) -> None:
        """`quantum`: tokens of one turn of a key."""
        self._by_priority = {
            priority: PriorityClass(weight=WEIGHTS[priority], quantum=quantum) for priority in sorted(Priority)
        }
        self._lead = LEAD_STEPS * TURNS_PER_STEP * quantum / WEIGHTS[Priority.INTERACTIVE]  # in virtual time
        self._virtual_time = 0.0

    def __iter__(self) -> Iterator[PriorityClass]:
        """The classes, the highest first."""
        return iter(self._by_priority.values())

    def of(self, priority: Priority) -> PriorityClass:
        """The class of a priority."""
        return self._by_priority[priority]

    def backlogs(self) -> dict[Priority, Backlog]:
        """What waits of each priority that has anything waiting, also in line."""
        return {
            priority: priority_class.counts.backlog
            for priority, priority_class in self._by_priority.items()
            if priority_class.counts.jobs
        }

    def join(self, priority_class: PriorityClass, waiting: WaitingJob) -> None:
        """Adds a job to a class. A class in which nothing waited starts no earlier than the others."""
        if not priority_class.tokens:
            priority_class.tag = max(priority_class.tag, self._least_tag())
        priority_class.join(waiting)

    def next_served(self) -> tuple[PriorityClass, Key, WaitingJob] | None:
        """The highest class that is not ahead of its share, its next key, and that key's next job."""
        ready = [(priority_class, key) for priority_class in self if (key := priority_class.keys.head()) is not None]
        least = min((priority_class.tag for priority_class, _ in ready), default=0.0)
        for priority_class, key in ready:
            waiting = key.jobs.head()
            if priority_class.tag <= least + self._lead and waiting is not None:
                return priority_class, key, waiting
        return None

    def charge(self, priority_class: PriorityClass, cost: int, *, filling: bool) -> None:
        """Charges a class for a turn; see `Flows.serve`."""
        least, charged = self._least_tag(), priority_class.tag + cost / priority_class.weight
        priority_class.tag = max(priority_class.tag, min(charged, least + self._lead)) if filling else charged

    def _least_tag(self) -> float:
        """The virtual time of the classes: the least tag will do, since they are few and never forgotten."""
        tags = [priority_class.tag for priority_class in self if priority_class.tokens]
        self._virtual_time = max(self._virtual_time, min(tags, default=0.0))
        return self._virtual_time
