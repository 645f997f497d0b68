"""The waiting jobs of one priority: its keys, and the jobs of each key. No clock, no I/O."""

import heapq
from dataclasses import dataclass, field
from itertools import count

from gpu_worker.queue.backlog_counts import BacklogCounts
from gpu_worker.queue.flows import Flow, Flows
from gpu_worker.queue.lanes import Lanes
from gpu_worker.queue.waiting_job import WaitingJob

REMEMBERED = 4096
"""Most keys without waiting jobs that are remembered, because they were served ahead of others."""


@dataclass(slots=True, kw_only=True, eq=False)
class Key(Flow):
    """A fairness key and its waiting jobs. Its deadline is that of its next job."""

    name: str
    jobs: Lanes


@dataclass(slots=True, kw_only=True)
class PriorityClass:
    """The keys of one priority, and their waiting jobs.

    `weight`: its share among the classes. `quantum`: tokens of one turn of a key. `tokens`: tokens that wait and may be
    served. `tag`: its virtual time, in tokens / weight. `counts`: all that waits, also in line for room. `small`: its
    jobs of at most a turn, by arrival, and `small_tokens` theirs.
    """

    weight: int
    quantum: int
    tokens: int = 0
    tag: float = 0.0
    small: dict[int, WaitingJob] = field(init=False, default_factory=dict)
    small_tokens: int = field(init=False, default=0)
    counts: BacklogCounts = field(init=False, default_factory=BacklogCounts)
    keys: Flows[Key] = field(init=False)
    _keys_by_name: dict[str, Key] = field(init=False, default_factory=dict)
    _idle: list[tuple[float, int, Key]] = field(init=False, default_factory=list)  # heap of tag, arrival, key
    _arrivals: "count[int]" = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        self.keys = Flows(self.quantum)

    def join(self, job: WaitingJob) -> None:
        """Lets a job be served, which is counted already. Its key may be new."""
        key = self._keys_by_name.get(job.key)
        if key is None:
            key = Key(arrival=next(self._arrivals), name=job.key, jobs=Lanes(self.quantum))
            self._keys_by_name[job.key] = key
        if not key.jobs.waiting:
            self.keys.join(key)
        key.jobs.join(job)
        self.tokens += job.tokens
        if job.tokens <= self.quantum and not job.room:
            self.small[job.arrival] = job
            self.small_tokens += job.tokens
        self.reorder(key)

    def leave(self, job: WaitingJob) -> None:
        """Removes a job that may not be served any more; it stays counted."""
        key = self._keys_by_name[job.key]
        key.jobs.leave(job)
        self.tokens -= job.tokens
        if self.small.pop(job.arrival, None) is not None:
            self.small_tokens -= job.tokens
        if key.jobs.waiting:
            self.reorder(key)
        else:
            self.keys.leave(key)
            self._remember(key)

    def is_ahead(self, job: WaitingJob) -> bool:
        """Whether a waiting job's key was served more than a turn beyond its share."""
        return self._keys_by_name[job.key].tag > self.keys.time + self.quantum

    def serve_small(self, job: WaitingJob) -> None:
        """Serves all that waits of a job out of its turn. Its key and its lane are charged as in a turn."""
        key, cost = self._keys_by_name[job.key], job.tokens
        key.jobs.charge(job, cost)
        self.keys.charge(key, cost)
        self.leave(job)
        self.counts.remove_job(job)
        job.position, job.tokens = len(job.costs), 0

    def serve(self, key: Key, job: WaitingJob, stop: int, cost: int, *, filling: bool) -> None:
        """Charges the next job of the next key for a turn up to unit `stop`; see `Flows.serve`."""
        done = stop == len(job.costs)
        job.position, job.tokens = stop, job.tokens - cost
        self.tokens -= cost
        self.counts.serve(job, cost, done=done)
        if job.arrival in self.small:
            self.small_tokens -= cost
            if done:
                del self.small[job.arrival]
        key.jobs.serve(job, cost, filling=filling, done=done)
        self.keys.serve(key, cost, filling=filling, done=not key.jobs.waiting)
        if key.jobs.waiting:
            self.reorder(key)
        else:
            self._remember(key)

    def reorder(self, key: Key) -> None:
        """Moves a key to where its next job belongs, or passes it over while none of its jobs may be served."""
        head = key.jobs.head()
        if head is None:
            self.keys.pause(key)
        elif key.entry is None or key.deadline != head.deadline:
            key.deadline = head.deadline
            self.keys.resume(key)

    def _remember(self, key: Key) -> None:
        """Remembers the tag of a key without waiting jobs, so that it gains nothing by coming back.

        Forgets keys that virtual time has reached, which would start there anyway, and where too many are remembered,
        those that are least ahead of it.
        """
        idle = self._idle
        heapq.heappush(idle, (key.tag, key.arrival, key))
        while idle and (idle[0][0] <= self.keys.time or len(idle) > REMEMBERED):
            tag, _, key = heapq.heappop(idle)
            if not key.jobs.waiting and key.tag == tag and self._keys_by_name.get(key.name) is key:
                del self._keys_by_name[key.name]
