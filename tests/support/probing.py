"""Asks a server for its health again and again, in a process of its own. Arguments: its address and its process.

For each line on standard input it prints the longest wait since the line before, in seconds as they would have passed
with the machine's cores to the server alone. Linux tells how long each thread ran and how long it waited for a core
(schedstat). So a moment counts as long as the server would have needed for what it did in it; time in which it slept,
held a lock or was stopped counts whole.
"""

import os
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PAUSE, LOOK = 0.02, 0.01
"""Seconds between two questions, and between two looks at the threads."""
STOPPED = 0.1
"""A look that is later by more seconds than this thread waited for a core tells that the whole machine stood still."""


@dataclass(slots=True)
class Look:
    """What happened until a moment of the machine's clock: the seconds that passed, and those that all threads of the
    server ran and waited for a core."""

    end: float
    passed: float
    ran: float
    waited: float

    def seconds(self, cores: int) -> float:
        """As they would have been without others."""
        wanted = (self.ran + self.waited) / self.passed
        return self.passed - self.waited if wanted <= 1 else min(self.passed, self.ran / min(wanted, cores))


def figures(task: Path) -> tuple[float, float]:
    """Seconds for which a thread ran, and for which it waited for a core."""
    ran, waited, _ = (task / "schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


class Clock:
    """The seconds of the process `pid`. `asker`: the thread whose waits for a core are not the server's either."""

    def __init__(self, pid: str, asker: int) -> None:
        self._tasks, self._asker = Path(f"/proc/{pid}/task"), Path(f"/proc/self/task/{asker}")
        self._cores = len(os.sched_getaffinity(int(pid)))
        figures(self._asker)  # a kernel that tells nothing of this ends the process here
        self._looks = deque([Look(time.monotonic(), 1.0, 0.0, 0.0)], maxlen=20_000)
        threading.Thread(target=self._go_on, daemon=True).start()

    def between(self, start: float, stop: float) -> float:
        """Seconds of the server between two moments."""
        while self._looks[-1].end < stop:
            time.sleep(LOOK)
        total = 0.0
        for look in list(self._looks):
            within = min(stop, look.end) - max(start, look.end - look.passed)
            total += max(0.0, within) / look.passed * look.seconds(self._cores)
        return total

    def _read(self) -> dict[Path, tuple[float, float]]:
        found = {}
        for task in (*self._tasks.iterdir(), self._asker):
            try:
                found[task] = figures(task)
            except OSError:  # it has ended
                continue
        return found

    def _go_on(self) -> None:
        own = Path(f"/proc/self/task/{threading.get_native_id()}")
        last, before = self._read(), sum(figures(own))
        while True:
            time.sleep(LOOK)
            now, spent, tasks = time.monotonic(), sum(figures(own)), self._read()
            passed = now - self._looks[-1].end
            still = passed - LOOK - (spent - before)
            look = Look(now, passed - still * (still > STOPPED), 0.0, 0.0)
            for task, (ran, waited) in tasks.items():
                ran_before, waited_before = last.get(task, (0.0, 0.0))
                look.ran += ran - ran_before
                left = waited - waited_before  # told at its end: it belongs to the looks before as well
                for one in chain([look], reversed(self._looks)):
                    if left <= 0:
                        break
                    one.waited += min(left, one.passed)
                    left -= one.passed
            self._looks.append(look)
            last, before = tasks, spent


def main(address: str, pid: str) -> None:
    lines = threading.Semaphore(0)

    def listen() -> None:
        for _ in sys.stdin:
            lines.release()
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    clock, longest = Clock(pid, threading.get_native_id()), 0.0
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            start = time.monotonic()
            stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
            longest = max(longest, clock.between(start, time.monotonic()))
            if lines.acquire(timeout=PAUSE):
                print(longest, flush=True)
                longest = 0.0


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
