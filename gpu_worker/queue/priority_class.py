"""The waiting jobs of one priority: its keys, and the jobs of each key. No clock, no I/O."""

import heapq
from dataclasses import dataclass, field
from itertools import count, zip_longest

from gpu_worker.queue.flows import Flow, Flows
from gpu_worker.queue.lanes import Lanes
from gpu_worker.queue.line_counts import LineCounts
from gpu_worker.queue.size_counts import SizeCounts
from gpu_worker.queue.waiting_job import WaitingJob
from shared.load import Backlog

REMEMBERED = 4096
"""Most keys without waiting jobs that are remembered, because they were served ahead of others."""


@dataclass(slots=True, kw_only=True, eq=False)
class Key(Flow):
    """A fairness key and its waiting jobs. Its deadline is that of its next job."""

    name: str
    jobs: Lanes
    tokens: int = 0


@dataclass(slots=True, kw_only=True)
class PriorityClass:
    """The keys of one priority, and their waiting jobs.

    `weight`: its share among the classes. `quantum`: tokens of one turn of a key. `tokens`: tokens that wait and may be
    served. `tag`: its virtual time, in tokens / weight. `line`: its jobs that stand in line for room. `small`: its
    jobs of at most a turn, by arrival, `small_tokens` in all.
    """

    weight: int
    quantum: int
    tokens: int = 0
    tag: float = 0.0
    small_tokens: int = 0
    small: dict[int, WaitingJob] = field(init=False, default_factory=dict)
    line: LineCounts = field(init=False, default_factory=LineCounts)
    keys: Flows[Key] = field(init=False)
    _keys_by_name: dict[str, Key] = field(init=False, default_factory=dict)
    _idle: list[tuple[float, int, Key]] = field(init=False, default_factory=list)  # heap of tag, arrival, key
    _sizes: SizeCounts = field(init=False, default_factory=SizeCounts)
    _arrivals: "count[int]" = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        self.keys = Flows(self.quantum)

    @property
    def backlog(self) -> Backlog:
        """What waits, also in line, in the form that frontends receive."""
        if not self.line.tokens:
            return Backlog(keys=self.keys.waiting, tokens=self.tokens, jobs=tuple(self._sizes.counts))
        only_in_line = sum(not self._waiting_of_key(name) for name in self.line.by_key)
        jobs = map(sum, zip_longest(self._sizes.counts, self.line.sizes.counts, fillvalue=0))
        return Backlog(keys=self.keys.waiting + only_in_line, tokens=self.tokens + self.line.tokens, jobs=tuple(jobs))

    def tokens_of_key(self, name: str) -> int:
        """Tokens of a key that wait, also in line."""
        return self._waiting_of_key(name) + self.line.by_key.get(name, 0)

    def _waiting_of_key(self, name: str) -> int:
        key = self._keys_by_name.get(name)
        return key.tokens if key is not None else 0

    def join(self, job: WaitingJob) -> None:
        """Adds a job, with its key if that is new."""
        key = self._keys_by_name.get(job.key)
        if key is None:
            key = Key(arrival=next(self._arrivals), name=job.key, jobs=Lanes(self.quantum))
            self._keys_by_name[job.key] = key
        if not key.jobs.waiting:
            self.keys.join(key)
        key.jobs.join(job)
        self._sizes.add_job(job.tokens)
        self.tokens += job.tokens
        key.tokens += job.tokens
        if job.tokens <= self.quantum and not job.room:
            self.small[job.arrival] = job
            self.small_tokens += job.tokens
        self.reorder(key)

    def leave(self, job: WaitingJob) -> None:
        """Removes a job that waits no more."""
        key = self._keys_by_name[job.key]
        key.jobs.leave(job)
        self._sizes.remove_job(job.tokens)
        self.tokens -= job.tokens
        key.tokens -= job.tokens
        if self.small.pop(job.arrival, None) is not None:
            self.small_tokens -= job.tokens
        if key.jobs.waiting:
            self.reorder(key)
        else:
            self.keys.leave(key)
            self._remember(key)

    def serve_small(self, job: WaitingJob) -> None:
        """Serves all that waits of a job out of its turn. Its key and its lane are charged as in a turn."""
        key, cost = self._keys_by_name[job.key], job.tokens
        key.jobs.charge(job, cost)
        self.keys.charge(key, cost)
        self.leave(job)
        job.position, job.tokens = len(job.costs), 0

    def serve(self, key: Key, job: WaitingJob, stop: int, cost: int, *, filling: bool) -> None:
        """Charges the next job of the next key for a turn up to unit `stop`; see `Flows.serve`."""
        done = stop == len(job.costs)
        self._sizes.remove_job(job.tokens)
        job.position, job.tokens = stop, job.tokens - cost
        if not done:
            self._sizes.add_job(job.tokens)
        self.tokens -= cost
        key.tokens -= cost
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
