"""Which waiting sequences make the next step. Pure; standard library only.

Start-time fair queueing (Goyal, Vin, Cheng 1996): every job has a virtual time that grows with the tokens it was
served, the least goes first, and a new job starts at the virtual time of the system. So a small job never waits for
a big one that came before it, and no job starves.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Sequences `start` to `stop` of a job's own order."""

    job: int
    start: int
    stop: int


@dataclass(slots=True, kw_only=True)
class _Backlog:
    costs: Sequence[int]
    position: int
    virtual_time: float
    arrival: int
    waiting: int


class FairQueue:
    """The backlog of all jobs, in tokens."""

    def __init__(self, *, quantum: int) -> None:
        """`quantum`: tokens that a job gets in a row while others wait, rounded up to a sequence."""
        self._quantum = quantum
        self._backlogs: dict[int, _Backlog] = {}
        self._virtual_time = 0.0
        self._arrivals = count()
        self._waiting = 0

    def add(self, job: int, costs: Sequence[int]) -> None:
        """Adds a job whose sequences cost so many tokens, in the order in which it wants them served."""
        assert costs
        assert job not in self._backlogs
        self._backlogs[job] = _Backlog(
            costs=costs,
            position=0,
            virtual_time=self._virtual_time,
            arrival=next(self._arrivals),
            waiting=sum(costs),
        )
        self._waiting += self._backlogs[job].waiting

    def remove(self, job: int) -> None:
        """Forgets what waits of a job; an unknown one is no error."""
        backlog = self._backlogs.pop(job, None)
        if backlog is not None:
            self._waiting -= backlog.waiting

    @property
    def waiting(self) -> int:
        """Tokens that wait; kept, not counted, since every submit asks."""
        return self._waiting

    def __len__(self) -> int:
        """Jobs that wait."""
        return len(self._backlogs)

    def next_step(self, budget: int) -> list[Slice]:
        """Takes the next step's sequences: `budget` tokens at most, but always one sequence if any waits."""
        heap = [(each.virtual_time, each.arrival, job) for job, each in self._backlogs.items()]
        heapq.heapify(heap)
        taken: dict[int, Slice] = {}
        free, first = budget, True
        while heap and free > 0:
            start_time, arrival, job = heapq.heappop(heap)
            backlog = self._backlogs[job]
            alone = not heap
            stop, cost = self._take(backlog, free if alone else min(free, self._quantum), free, forced=first)
            if not cost:
                continue  # its next sequence does not fit into what is left; others may
            self._virtual_time = max(self._virtual_time, start_time)
            begin = taken[job].start if job in taken else backlog.position
            taken[job] = Slice(job=job, start=begin, stop=stop)
            free, first = free - cost, False
            backlog.position, backlog.waiting = stop, backlog.waiting - cost
            self._waiting -= cost
            backlog.virtual_time += cost
            if stop == len(backlog.costs):
                del self._backlogs[job]
            else:
                heapq.heappush(heap, (backlog.virtual_time, arrival, job))
        return list(taken.values())

    @staticmethod
    def _take(backlog: _Backlog, wanted: int, free: int, *, forced: bool) -> tuple[int, int]:
        """Where to stop, and what it costs: up to `wanted` tokens, the last sequence may pass it within `free`."""
        stop, cost = backlog.position, 0
        while stop < len(backlog.costs) and cost < wanted:
            following = backlog.costs[stop]
            if cost + following > free and not (forced and cost == 0):
                break
            stop, cost = stop + 1, cost + following
        return stop, cost
