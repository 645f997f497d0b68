"""Asks a server for its health again and again, in a process of its own, beside a measure of the machine.

Told to end, it waits for the answer to its last question. Then it prints a line for each question that waited for long,
the longest of all at least: how many seconds; how many times slower than usual the machine was in these very seconds,
since what takes `USUAL` seconds on idle cores takes longer where others compute; how long it once stood still then; and
for how long nothing of this process ran at all, since its host had stopped the machine.
"""

import signal
import sys
import threading
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PAUSE = 0.02
LONG = 0.25
USUAL = 0.01
STEPS = 200_000
"""Of the work that takes so long; it lasts longer than a turn of the scheduler, so that it has to share."""
SHARE = 5
"""Of the time, one part in about so many goes to that work."""
BEAT, STOPPED = 0.01, 0.5
"""Seconds between two looks at the clock; one that is so late tells that the machine was stopped."""


class Pace:
    """How long the work takes here and now."""

    def __init__(self) -> None:
        self._runs: list[tuple[float, float]] = []
        self._stops: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._go_on, self._look)]
        for each in self._threads:
            each.start()

    def end(self) -> None:
        """Returns when the last run is over, which may have begun in the last question's time."""
        self._ended.set()
        for each in self._threads:
            each.join()

    def between(self, start: float, stop: float) -> tuple[float, float, float]:
        """How many times slower than usual, 1 at least, on average of the runs in that time; seconds of the longest;
        seconds for which the machine was stopped."""
        taken = [end - begin for begin, end in self._runs if begin < stop and end > start] or [USUAL]
        stopped = sum(max(0.0, min(end, stop) - max(begin, start)) for begin, end in self._stops)
        return max(1.0, sum(taken) / len(taken) / USUAL), max(taken), stopped

    def _look(self) -> None:
        looked, ended = time.monotonic(), False
        while not ended:
            ended = self._ended.wait(BEAT)
            before, looked = looked, time.monotonic()
            if looked - before > STOPPED:
                self._stops.append((before, looked))

    def _go_on(self) -> None:
        pause = 0.0
        while not self._ended.wait(pause):
            start, total = time.monotonic(), 0
            for number in range(STEPS):
                total += number
            self._runs.append((start, time.monotonic()))
            pause = (SHARE - 1) * (time.monotonic() - start)


if __name__ == "__main__":
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    pace, waits = Pace(), list[tuple[float, float]]()
    with grpc.insecure_channel(sys.argv[1]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not ending.wait(PAUSE):
            start = time.monotonic()
            stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
            if not waits:
                print("begun", flush=True)
            waits.append((start, time.monotonic()))
    pace.end()
    longest = max(stop - start for start, stop in waits)
    for start, stop in waits:
        if stop - start >= min(LONG, longest):
            print(stop - start, *pace.between(start, stop))
