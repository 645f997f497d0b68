"""What one process counted. Latencies are of answers with status OK; refusals answer fast and would flatter them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.load.latency import Latencies

OK = "OK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer: the gRPC status, `HTTP 503` and its like, or the name of what broke; and its bytes."""

    status: str
    body: bytes = b""


class Tally:
    """Every call is counted once: as an answer, as an error, or as outside of the window.

    `answers` counts OK by request, from which tokens follow. `before` and `last`: the times of the last answer before
    the window and of the last that counts; 0 where there is none. Between them exactly what counts was answered, also
    where answers come in bursts. `lateness`: open loop, how late the generator itself sent. `times`: where they are
    wanted, for each answer its latency and after it what it tells itself, in seconds.
    """

    def __init__(self, kinds: Sequence[str], times: bool = False) -> None:
        self._kinds = kinds
        self._kept: list[tuple[float, bytes]] | None = [] if times else None
        self.times: list[Sequence[float]] = []
        self.answers: Counter[int] = Counter()
        self.errors: Counter[str] = Counter()
        self.outside = 0
        self.reply_bytes = 0
        self.before = self.last = 0.0
        self.latencies: defaultdict[str, Latencies] = defaultdict(Latencies)
        self.lateness = Latencies()

    def count(self, index: int, reply: Reply, latency: float, answered: float) -> None:
        """The answer to request `index`, within the window."""
        self.last = max(self.last, answered)
        if reply.status != OK:
            self.errors[reply.status] += 1
            return
        self.answers[index] += 1
        self.reply_bytes += len(reply.body)
        self.latencies[self._kinds[index]].record(latency)
        if self._kept is not None:
            self._kept.append((latency, reply.body))

    def read_times(self, told: Callable[[bytes], Sequence[float]]) -> None:
        """Reads what was kept; not while the load runs, which it would slow down."""
        self.times += [(latency, *told(body)) for latency, body in self._kept or ()]
        self._kept = None

    def pass_by(self, answered: float, *, before: bool) -> None:
        """An answer outside of the window, `before` it or after it."""
        self.outside += 1
        if before:
            self.before = max(self.before, answered)

    @property
    def calls(self) -> int:
        """All that was sent and answered somehow."""
        return self.answers.total() + self.errors.total() + self.outside

    def add(self, other: "Tally") -> None:
        """Another process's."""
        self.answers += other.answers
        self.errors += other.errors
        self.outside += other.outside
        self.reply_bytes += other.reply_bytes
        self.before = max(self.before, other.before)
        self.last = max(self.last, other.last)
        self.lateness.add(other.lateness)
        self.times += other.times
        for kind, latencies in other.latencies.items():
            self.latencies[kind].add(latencies)

    def to_json(self) -> dict[str, Any]:
        """For the way from the client's process to the generator's."""
        return {
            "answers": sorted(self.answers.items()),
            "errors": dict(self.errors),
            "outside": self.outside,
            "reply_bytes": self.reply_bytes,
            "before": self.before,
            "last": self.last,
            "latencies": {kind: latencies.encoded() for kind, latencies in self.latencies.items()},
            "lateness": self.lateness.encoded(),
            "times": self.times,
        }

    @classmethod
    def from_json(cls, told: dict[str, Any], kinds: Sequence[str]) -> "Tally":
        """The other direction."""
        tally = cls(kinds)
        tally.answers.update(dict(told["answers"]))
        tally.errors.update(told["errors"])
        tally.outside, tally.reply_bytes = told["outside"], told["reply_bytes"]
        tally.before, tally.last = told["before"], told["last"]
        tally.latencies.update({kind: Latencies(text) for kind, text in told["latencies"].items()})
        tally.lateness = Latencies(told["lateness"])
        tally.times = told["times"]
        return tally
