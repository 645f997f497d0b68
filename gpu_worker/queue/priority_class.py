"""What waits of one priority class: its keys, and the jobs of each key. Pure; no clock."""

import heapq
from dataclasses import dataclass, field
from itertools import count

from gpu_worker.queue.flows import Flow, Flows
from gpu_worker.queue.lanes import Lanes
from gpu_worker.queue.sizes import Sizes
from gpu_worker.queue.waiting import Waiting
from shared.load import Backlog

REMEMBERED = 4096
"""Keys that are remembered while nothing of them waits, for what they were served ahead of others."""


@dataclass(slots=True, kw_only=True, eq=False)
class Key(Flow):
    """A fairness key; its deadline is that of its next job."""

    name: str
    jobs: Lanes
    tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Class:
    """The keys of one priority. `weight`: its share among the classes; `tag`: tokens that it was served, by weight."""

    weight: int
    quantum: int
    tokens: int = 0
    tag: float = 0.0
    keys: Flows[Key] = field(init=False)
    _named: dict[str, Key] = field(init=False, default_factory=dict)
    _idle: list[tuple[float, int, Key]] = field(init=False, default_factory=list)
    _sizes: Sizes = field(init=False, default_factory=Sizes)
    _arrivals: "count[int]" = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        self.keys = Flows(self.quantum)

    @property
    def backlog(self) -> Backlog:
        """As it is told to frontends."""
        return Backlog(keys=self.keys.waiting, tokens=self.tokens, jobs=tuple(self._sizes.counts))

    def tokens_of(self, name: str) -> int:
        """What waits of a key."""
        key = self._named.get(name)
        return key.tokens if key is not None else 0

    def key(self, waiting: Waiting) -> Key:
        """The key of a job that waits."""
        return self._named[waiting.name]

    def enter(self, waiting: Waiting) -> None:
        """Lets a job wait."""
        key = self._named.get(waiting.name)
        if key is None:
            key = Key(arrival=next(self._arrivals), name=waiting.name, jobs=Lanes(self.quantum))
            self._named[waiting.name] = key
        if not key.jobs.waiting:
            self.keys.join(key)
        key.jobs.join(waiting)
        self._sizes.add(waiting.tokens)
        self.tokens += waiting.tokens
        key.tokens += waiting.tokens
        self.refresh(key)

    def leave(self, waiting: Waiting) -> None:
        """Nothing of it waits any more."""
        key = self._named[waiting.name]
        key.jobs.leave(waiting)
        self._sizes.remove(waiting.tokens)
        self.tokens -= waiting.tokens
        key.tokens -= waiting.tokens
        if key.jobs.waiting:
            self.refresh(key)
        else:
            self.keys.leave(key)
            self._remember(key)

    def serve(self, key: Key, waiting: Waiting, stop: int, cost: int, *, filling: bool) -> None:
        """Takes a turn of the next job of the next key."""
        done = stop == len(waiting.costs)
        self._sizes.remove(waiting.tokens)
        waiting.position, waiting.tokens = stop, waiting.tokens - cost
        if not done:
            self._sizes.add(waiting.tokens)
        self.tokens -= cost
        key.tokens -= cost
        key.jobs.serve(waiting, cost, filling=filling, done=done)
        self.keys.serve(key, cost, filling=filling, done=not key.jobs.waiting)
        if key.jobs.waiting:
            self.refresh(key)
        else:
            self._remember(key)

    def refresh(self, key: Key) -> None:
        """Puts a key where its next job wants it."""
        head = key.jobs.head()
        if head is None:
            self.keys.hold(key)
        elif key.entry is None or key.deadline != head.deadline:
            key.deadline = head.deadline
            self.keys.ready(key)

    def _remember(self, key: Key) -> None:
        """A key of which nothing waits, until it would start at the virtual time anyway, or too many are remembered."""
        idle = self._idle
        heapq.heappush(idle, (key.tag, key.arrival, key))
        while idle and (idle[0][0] <= self.keys.time or len(idle) > REMEMBERED):
            tag, _, key = heapq.heappop(idle)
            if not key.jobs.waiting and key.tag == tag and self._named.get(key.name) is key:
                del self._named[key.name]
