"""Under what the ablations run, and how something is timed there."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

PAUSE = 0.005
"""Seconds between turns, so that one variant's spinning threads are asleep before the next begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """`turn` are the seconds that a variant runs at least, each time it is its turn; `model` a name for `load`."""

    device: torch.device
    model: str = "minilm"
    seed: int = 1
    rounds: int = 15
    turn: float = 0.02
    quick: bool = False

    @property
    def accelerated(self) -> bool:
        """Whether the device works by itself while the host goes on."""
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.accelerated:
            torch.cuda.synchronize(self.device)

    def several(self, work: Callable[[], object], times: int) -> float:
        """Seconds a call, from an idle device to an idle device: the host waits once, after the last call. The first
        call does not count, see `benchmarks/rounds.py`."""
        time.sleep(PAUSE)
        work()
        self.wait()
        start = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return (time.perf_counter() - start) / times

    def behind(self, before: Callable[[], object], work: Callable[[], object], times: int) -> float:
        """Seconds that `work` holds the host a call, while the device is still busy with what `before` launched."""
        time.sleep(PAUSE)
        spent = 0.0
        for _ in range(times):
            self.wait()
            before()
            start = time.perf_counter()
            work()
            spent += time.perf_counter() - start
        self.wait()
        return spent / times
