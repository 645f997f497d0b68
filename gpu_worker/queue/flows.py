"""Flows that share evenly: the keys of a class, or the jobs of a key. No clock, no I/O; standard library only.

Start-time fair queueing (Goyal, Vin, Cheng 1996). Each flow has a tag, the virtual time at which its next turn starts.
The flow with the least tag is served next, and its tag grows by the tokens that it is served. A new flow starts at the
current virtual time, which grows by the tokens served divided by the number of waiting flows: as fast as the tag of a
flow with an even share. In the paper virtual time is the least tag instead; then short jobs that keep coming hold it
back for ever, and a long job starves.
"""

import heapq
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

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
        """The next flow to be served, or None."""
        heap = self._heap
        while heap and heap[0][-1].entry is not heap[0]:
            heapq.heappop(heap)
        return heap[0][-1] if heap else None  # type: ignore[return-value]  # only F ever joined

    def serve(self, head: F, cost: int, *, filling: bool, done: bool) -> None:
        """Charges a flow for a turn of `cost` tokens. `done`: nothing of it waits any more.

        `head`: the flow that `head()` has just returned; its entry is replaced where it lies, first in the heap.

        `filling`: the turn filled the rest of a step after an earlier flow did not fit. Nobody else could have used
        that room, so virtual time stands still, and the tag ends at most a quantum ahead of it.
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
