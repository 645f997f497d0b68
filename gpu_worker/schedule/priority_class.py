"""The waiting jobs of one priority: its keys share it evenly, and jobs share what their key gets. No clock, no I/O.

Keys, and the jobs of a key, share by start-time fair queueing (Goyal, Vin, Cheng 1996). Each of them has a tag, the
virtual time at which its next turn starts. Who has the least tag is served next, and its tag grows by the tokens that
it is served. Who is new starts at the current virtual time, which grows by the tokens served divided by the number of
those who wait: as fast as the tag of one with an even share. In the paper virtual time is the least tag instead; then
short jobs that keep coming hold it back for ever, and a long job starves.

A rerank of twenty passages that took turns with 64 single texts would wait for all of them twenty times. So the short
jobs of a key take no turns: of those that came at about the same time the earliest deadline is served first, then the
earliest arrival. While a short job waits, the long jobs of its key share what `SHORT_SHARE` leaves to them.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Generic, TypeVar

from shared.load import SHORT_SHARE, Backlog

REMEMBERED = 4096
"""Most keys without waiting jobs that are remembered, because they were served ahead of others."""
STALE_ENTRIES = 64
"""Stale entries that a heap may hold in any case, besides as many as it has live ones."""


@dataclass(slots=True, kw_only=True, eq=False)
class Flow:
    """A participant that takes turns: a key, or a job. `arrival` is unique among the flows that share."""

    arrival: int
    deadline: float = inf
    tag: float = 0.0
    entry: "tuple[int, float, int, Flow] | None" = None
    """The flow's live entry in the heap; its other entries are stale. None while the flow may not be served."""


F = TypeVar("F", bound=Flow)


class Flows(Generic[F]):
    """Waiting flows, the next one first.

    Tags within one quantum count as equal; then the earlier deadline decides, then the earlier arrival. `waiting`: the
    number of flows that wait, paused ones included. `time`: the virtual time, in tokens.
    """

    def __init__(self, quantum: int, *, charged: bool = True) -> None:
        """`quantum`: tokens of one turn. Not `charged`: a flow keeps its place until all of it is served."""
        self._quantum, self._charged = quantum, charged
        self._heap: list[tuple[int, float, int, Flow]] = []
        self.waiting = 0
        self.time = 0.0

    def join(self, flow: F) -> None:
        """Adds a flow that begins to wait. One that returns keeps its tag if that is later than virtual time."""
        flow.tag = max(flow.tag, self.time)
        self.waiting += 1
        self.resume(flow)

    def leave(self, flow: F) -> None:
        """Removes a flow that waits no more; the flow keeps its tag."""
        flow.entry = None
        self.waiting -= 1
        if not self.waiting:
            self.time = max(self.time, flow.tag)
        if len(self._heap) > 2 * self.waiting + STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[-1].entry is entry]
            heapq.heapify(self._heap)

    def resume(self, flow: F) -> None:
        """Lets a waiting flow be served, in the order of its present tag and deadline."""
        flow.entry = self._entry(flow)
        heapq.heappush(self._heap, flow.entry)

    def pause(self, flow: F) -> None:
        """Passes a waiting flow over until it is resumed."""
        flow.entry = None

    def head(self) -> F | None:
        """Returns the next flow to be served, or None."""
        heap = self._heap
        while heap and heap[0][-1].entry is not heap[0]:
            heapq.heappop(heap)
        return heap[0][-1] if heap else None  # type: ignore[return-value]  # only F ever joined

    def serve(self, head: F, cost: int, *, filling: bool, done: bool) -> None:
        """Charges a flow for a turn of `cost` tokens. `done`: nothing of it waits any more.

        `head`: the flow that `head()` has just returned; its entry is replaced where it lies, first in the heap.

        `filling`: the turn filled the rest of a step after an earlier flow did not fit. Nobody else could have used
        those tokens, so virtual time stands still, and the tag ends at most a quantum ahead of it.
        """
        assert head.entry is self._heap[0], "only the head may be served"
        charged = head.tag + cost
        if filling:
            charged = max(head.tag, min(charged, self.time + self._quantum))
        else:
            self._advance(cost)
        if self._charged:
            head.tag = charged
        if done:
            heapq.heappop(self._heap)
            self.leave(head)
        else:
            head.entry = self._entry(head)
            heapq.heapreplace(self._heap, head.entry)

    def charge(self, flow: F, cost: int) -> None:
        """Charges a waiting flow for `cost` tokens that it was served out of its turn."""
        self.head()  # so that the first entry is a live one
        self._advance(cost)
        if self._charged:
            flow.tag += cost
            if flow.entry is not None:
                self.resume(flow)

    def _advance(self, cost: int) -> None:
        """Moves virtual time on by a turn of `cost` tokens."""
        least = self._heap[0][0] * self._quantum if self._heap else 0  # flows behind virtual time may have left
        self.time = max(self.time, least) + cost / self.waiting

    def _entry(self, flow: F) -> tuple[int, float, int, Flow]:
        return (int(flow.tag // self._quantum), flow.deadline, flow.arrival, flow)


@dataclass(slots=True, kw_only=True, eq=False)
class WaitingJob(Flow):
    """A job whose units from `position` on wait, `tokens` in all.

    `job`: None once nothing of it waits. `of_class`: its priority's. `key`: its fairness key. `longest`: cost of its
    largest unit. `long`: its lane, however little is left of it. `room`: see `OpenJob`. `has_room`: room was taken for
    the next unit. `aside`, `in_line`: why it is not served now.
    """

    job: object
    of_class: "PriorityClass"
    key: str
    costs: Sequence[int]
    tokens: int
    longest: int
    long: bool
    room: Sequence[int] = ()
    position: int = 0
    has_room: bool = False
    aside: bool = False
    in_line: bool = False

    @property
    def next_cost(self) -> int:
        """Cost of the next unit."""
        return self.costs[self.position]

    def next_turn(self, wanted: int, free: int) -> tuple[int, int]:
        """The unit at which the job's next turn would stop, and the tokens that the turn would cost.

        The turn has units of at most `wanted` tokens together, or a single larger unit of at most `free` tokens; where
        the next unit is larger than that, the turn has none.
        """
        stop, cost, costs = self.position, 0, self.costs
        while stop < len(costs) and cost + costs[stop] <= (wanted if cost else free):
            stop, cost = stop + 1, cost + costs[stop]
        return stop, cost


@dataclass(slots=True, kw_only=True, eq=False)
class Lane:
    """The short or the long jobs of a key. `weight`: its share. `tag`: its virtual time, in tokens / weight."""

    jobs: Flows[WaitingJob]
    weight: int
    tag: float = 0.0


class Key(Flow):
    """A fairness key and its waiting jobs. Its deadline is that of its next job."""

    __slots__ = ("_long", "_quantum", "_short", "name")

    def __init__(self, name: str, arrival: int, quantum: int) -> None:
        """`quantum`: tokens of one turn of a long job."""
        super().__init__(arrival=arrival)
        self.name, self._quantum = name, quantum
        self._short = Lane(jobs=Flows(quantum, charged=False), weight=SHORT_SHARE)
        self._long = Lane(jobs=Flows(quantum), weight=1)

    @property
    def waiting(self) -> int:
        """Number of jobs in both lanes."""
        return self._short.jobs.waiting + self._long.jobs.waiting

    def join(self, job: WaitingJob) -> None:
        """Adds a job. A lane that was empty starts no earlier than the other one."""
        lane, other = self._lanes_of(job)
        if not lane.jobs.waiting:
            lane.tag = max(lane.tag, other.tag) if other.jobs.waiting else other.tag
        lane.jobs.join(job)

    def leave(self, job: WaitingJob) -> None:
        """Removes a job that waits no more."""
        self._lanes_of(job)[0].jobs.leave(job)

    def resume(self, job: WaitingJob) -> None:
        """Lets a waiting job be served, in its order."""
        self._lanes_of(job)[0].jobs.resume(job)

    def pause(self, job: WaitingJob) -> None:
        """Passes a waiting job over until it is resumed."""
        self._lanes_of(job)[0].jobs.pause(job)

    def head(self) -> WaitingJob | None:
        """Returns the next job to be served, or None."""
        short, long = self._short.jobs.head(), self._long.jobs.head()
        if short is None or long is None:
            return short or long
        return long if self._long.tag < self._short.tag else short

    def serve(self, head: WaitingJob, cost: int, *, filling: bool, done: bool) -> None:
        """Charges the head for its turn; see `Flows.serve`."""
        lane, other = self._lanes_of(head)
        charged = lane.tag + cost / lane.weight
        if filling and other.jobs.waiting:
            charged = max(lane.tag, min(charged, other.tag + self._quantum))
        lane.tag = charged
        lane.jobs.serve(head, cost, filling=filling, done=done)

    def charge(self, job: WaitingJob, cost: int) -> None:
        """Charges a waiting job for what it was served out of its turn; see `Flows.charge`."""
        lane = self._lanes_of(job)[0]
        lane.tag += cost / lane.weight
        lane.jobs.charge(job, cost)

    def _lanes_of(self, job: WaitingJob) -> tuple[Lane, Lane]:
        """Finds the lane of a job, and the other lane."""
        return (self._long, self._short) if job.long else (self._short, self._long)


@dataclass(slots=True, kw_only=True)
class BacklogCounts:
    """What waits of one priority, also in line for room, but not what is set aside: see `Backlog`.

    `by_key`: the tokens of each fairness key that has any waiting.
    """

    jobs: int = 0
    tokens: int = 0
    long_jobs: int = 0
    long_tokens: int = 0
    by_key: Counter[str] = field(default_factory=Counter)

    @property
    def backlog(self) -> Backlog:
        """In the form that frontends receive."""
        return Backlog(
            keys=len(self.by_key),
            jobs=self.jobs,
            tokens=self.tokens,
            long_jobs=self.long_jobs,
            long_tokens=self.long_tokens,
        )

    def add_job(self, job: WaitingJob) -> None:
        """Counts a job that begins to wait."""
        self.jobs += 1
        self.tokens += job.tokens
        self.by_key[job.key] += job.tokens
        if job.long:
            self.long_jobs += 1
            self.long_tokens += job.tokens

    def remove_job(self, job: WaitingJob) -> None:
        """Counts a job with what is left of it no more."""
        self.serve(job, job.tokens, done=True)

    def serve(self, job: WaitingJob, cost: int, *, done: bool) -> None:
        """Counts `cost` tokens of a job no more. `done`: nothing of it waits any more."""
        self.tokens -= cost
        self.by_key[job.key] -= cost
        if not self.by_key[job.key]:
            del self.by_key[job.key]
        if done:
            self.jobs -= 1
        if job.long:
            self.long_jobs -= done
            self.long_tokens -= cost


@dataclass(slots=True, kw_only=True)
class PriorityClass:
    """The keys of one priority, and their waiting jobs.

    `weight`: its share among the classes. `quantum`: tokens of one turn of a key. `tokens`: tokens that wait and may be
    served. `tag`: its virtual time, in tokens / weight. `counts`: all that waits, also in line for room. `small`: its
    jobs of at most a turn, by arrival.
    """

    weight: int
    quantum: int
    tokens: int = 0
    tag: float = 0.0
    small: dict[int, WaitingJob] = field(init=False, default_factory=dict)
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
            key = Key(job.key, next(self._arrivals), self.quantum)
            self._keys_by_name[job.key] = key
        if not key.waiting:
            self.keys.join(key)
        key.join(job)
        self.tokens += job.tokens
        if job.tokens <= self.quantum and not job.room:
            self.small[job.arrival] = job
        self.reorder(key)

    def leave(self, job: WaitingJob) -> None:
        """Removes a job that may not be served any more; it stays counted."""
        key = self._keys_by_name[job.key]
        key.leave(job)
        self.tokens -= job.tokens
        self.small.pop(job.arrival, None)
        if key.waiting:
            self.reorder(key)
        else:
            self.keys.leave(key)
            self._remember(key)

    def small_jobs(self, most: int) -> list[WaitingJob]:
        """The small jobs of at most so many tokens whose keys were served no more than a turn beyond their share."""
        ahead, keys = self.keys.time + self.quantum, self._keys_by_name
        return [job for job in self.small.values() if job.tokens <= most and keys[job.key].tag <= ahead]

    def serve_small(self, job: WaitingJob) -> None:
        """Serves all that waits of a job out of its turn. Its key and its lane are charged as in a turn."""
        key, cost = self._keys_by_name[job.key], job.tokens
        key.charge(job, cost)
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
        if done:
            self.small.pop(job.arrival, None)
        key.serve(job, cost, filling=filling, done=done)
        self.keys.serve(key, cost, filling=filling, done=not key.waiting)
        if key.waiting:
            self.reorder(key)
        else:
            self._remember(key)

    def reorder(self, key: Key) -> None:
        """Moves a key to where its next job belongs, or passes it over while none of its jobs may be served."""
        head = key.head()
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
            if not key.waiting and key.tag == tag and self._keys_by_name.get(key.name) is key:
                del self._keys_by_name[key.name]
