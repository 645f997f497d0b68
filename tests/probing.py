"""Asks a server for its health again and again, in a process of its own, beside a measure of the machine.

Told to end, it waits for the answer to its last question, then prints the longest wait in seconds; how many times
slower than usual the machine was, since what takes `USUAL` seconds on idle cores takes longer where others compute; and
how long it once stood still.
"""

import signal
import sys
import threading
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

PAUSE = 0.02
USUAL = 0.01
STEPS = 200_000
"""Of the work that takes so long; it lasts longer than a turn of the scheduler, so that it has to share."""
SHARE = 5
"""Of the time, one part in about so many goes to that work."""


class Pace:
    """How long the work takes here and now: on average, and at most."""

    def __init__(self) -> None:
        self._taken, self._runs, self.longest = 0.0, 0, 0.0
        self._work()
        threading.Thread(target=self._go_on, daemon=True).start()

    @property
    def slowness(self) -> float:
        """1 on a machine that is as fast as usual, or faster."""
        return max(1.0, self._taken / self._runs / USUAL)

    def _work(self) -> float:
        start, total = time.monotonic(), 0
        for number in range(STEPS):
            total += number
        taken = time.monotonic() - start
        self._taken, self._runs, self.longest = self._taken + taken, self._runs + 1, max(self.longest, taken)
        return taken

    def _go_on(self) -> None:
        while True:
            time.sleep((SHARE - 1) * self._work())


if __name__ == "__main__":
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    pace, slowest = Pace(), 0.0
    with grpc.insecure_channel(sys.argv[1]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not ending.wait(PAUSE):
            start = time.monotonic()
            stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
            if not slowest:
                print("begun", flush=True)
            slowest = max(slowest, time.monotonic() - start)
    print(slowest, pace.slowness, pace.longest)
