"""Flows that share evenly: the keys of a class, or the jobs of a key. Pure; standard library only; no clock.

Start-time fair queueing (Goyal, Vin, Cheng 1996). Each flow has a tag, the virtual time at which its next turn starts.
The least tag goes first, and grows by the tokens that its flow is served. A new flow starts at the virtual time of all,
which goes on by the tokens served divided by the flows that wait: as fast as a flow with an even share. The paper keeps
it at the least tag instead, where short jobs that keep coming hold it for ever, and a long one starves.
"""

import heapq
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar


@dataclass(slots=True, kw_only=True, eq=False)
class Flow:
    """One that takes turns. `arrival` is unique among the flows that share."""

    arrival: int
    deadline: float = inf
    tag: float = 0.0
    entry: "tuple[int, float, int, Flow] | None" = None
    """Its live entry in the heap; others of it are stale. None while it may not be served."""


F = TypeVar("F", bound=Flow)


class Flows(Generic[F]):
    """Flows that wait, the next one first. Tags in one quantum are equal: then deadlines decide, then arrivals."""

    def __init__(self, quantum: int, *, charged: bool = True) -> None:
        """`quantum`: tokens that are one turn. Not `charged`: a flow keeps its place until all of it is served."""
        self._quantum, self._charged = quantum, charged
        self._heap: list[tuple[int, float, int, Flow]] = []
        self.waiting = 0
        self.time = 0.0

    def join(self, flow: F) -> None:
        """Lets a flow wait. One that comes back goes on where it stood, or at the virtual time if that is later."""
        flow.tag = max(flow.tag, self.time)
        self.waiting += 1
        self.ready(flow)

    def leave(self, flow: F) -> None:
        """It waits no more; its tag stays with it."""
        flow.entry = None
        self.waiting -= 1
        if not self.waiting:
            self.time = max(self.time, flow.tag)
        if len(self._heap) > 2 * self.waiting + 64:
            self._heap = [each for each in self._heap if each[-1].entry is each]
            heapq.heapify(self._heap)

    def ready(self, flow: F) -> None:
        """Lets a waiting flow be served, at its place for its tag and deadline as they are now."""
        flow.entry = self._entry(flow)
        heapq.heappush(self._heap, flow.entry)

    def hold(self, flow: F) -> None:
        """Lets others be served before a flow that waits on."""
        flow.entry = None

    def head(self) -> F | None:
        """Who is next."""
        heap = self._heap
        while heap and heap[0][-1].entry is not heap[0]:
            heapq.heappop(heap)
        return heap[0][-1] if heap else None  # type: ignore[return-value]  # none but F ever joined

    def serve(self, head: F, cost: int, *, filling: bool, done: bool) -> None:
        """Charges the head for its turn. `done`: it leaves with that.

        `filling`: it took what was left of a step after one before it did not fit. Nobody else could have used that, so
        virtual time stands still, and it puts the flow at most a quantum ahead of it.
        """
        charged = head.tag + cost
        if filling:
            charged = max(head.tag, min(charged, self.time + self._quantum))
        else:
            least = self._heap[0][0] * self._quantum  # those behind virtual time may have left
            self.time = max(self.time, least) + cost / self.waiting
        if self._charged:
            head.tag = charged
        if done:
            heapq.heappop(self._heap)
            self.leave(head)
        else:
            head.entry = self._entry(head)
            heapq.heapreplace(self._heap, head.entry)

    def _entry(self, flow: F) -> tuple[int, float, int, Flow]:
        return (int(flow.tag // self._quantum), flow.deadline, flow.arrival, flow)
