"""Runs a service whose way of a request is stamped: `SERVICE=gpu_worker STAMPS=FILE python -m benchmarks.load.stamped`.

The service's own flags follow. Its methods are wrapped before it runs, so the product has no line for this. The file
says when the process came to each point, and is read while it runs. CLOCK_MONOTONIC is one clock for all processes of
a Linux machine, so stamps of several can be compared. A stamp takes about a microsecond.
"""

import functools
import inspect
import itertools
import mmap
import os
import pkgutil
import runpy
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

POINTS = (
    "arrived",
    "read",
    "tokenised",
    "job left",
    "job came",
    "queued",
    "planned",
    "computing",
    "pooling",
    "computed",
    "collecting",
    "answer left",
    "answer came",
    "reply made",
)
"""Where a request comes by, in this order."""
BEFORE, AFTER = "before", "after"
WRAPPED = {
    "frontend_service": (
        ("shared.server.interceptor:_named", BEFORE, "arrived"),
        ("frontend_service.api.http.port:Protocol.data_received", BEFORE, "arrived"),
        ("frontend_service.services.pipeline:Pipeline.tokenize", BEFORE, "read"),
        ("frontend_service.services.pipeline:Pipeline.tokenize", AFTER, "tokenised"),
        ("frontend_service.workers.job_stream:JobStream._next_message", AFTER, "job left"),
        ("frontend_service.workers.job_stream:JobStream._parse_message", BEFORE, "answer came"),
        ("shared.server.interceptor:Interceptor._until_read", BEFORE, "reply made"),
        ("frontend_service.api.http.app:_send_messages", BEFORE, "reply made"),
    ),
    "gpu_worker": (
        ("gpu_worker.link.attachment:Attachment.receive", BEFORE, "job came"),
        ("gpu_worker.schedule.driver:Driver.submit", AFTER, "queued"),
        ("gpu_worker.schedule.scheduler:Scheduler.plan_step", BEFORE, "planned"),
        ("gpu_worker.engine.engine:ModelEngine._compute", BEFORE, "computing"),
        ("gpu_worker.engine.step.outputs:Outputs.compute", BEFORE, "pooling"),
        ("gpu_worker.engine.engine:ModelEngine._compute", AFTER, "computed"),
        ("gpu_worker.schedule.scheduler:Scheduler.collect_step", BEFORE, "collecting"),
        ("gpu_worker.link.outbox:Outbox._message_of_outcomes", AFTER, "answer left"),
    ),
}
"""Functions of each service, whether they are stamped before or after, and the point that this is."""
CAPACITY = 1 << 19
"""Stamps that a file keeps; later ones replace the oldest."""
_ENTRY = struct.Struct("qq")


class StampFile:
    """The stamps of one process. Several threads may add to it."""

    def __init__(self, path: Path) -> None:
        """Makes the file, which must not be there."""
        with path.open("x+b") as file:
            file.truncate(CAPACITY * _ENTRY.size)
            self._map = mmap.mmap(file.fileno(), 0)
        self._numbers = itertools.count()

    def add(self, point: int) -> None:
        """Adds a stamp: this point was reached now."""
        place = next(self._numbers) % CAPACITY * _ENTRY.size
        _ENTRY.pack_into(self._map, place, point, time.monotonic_ns())


def wrap(name: str, when: str, stamp: Callable[[], None]) -> None:
    """Stamps each call of a function, by MODULE:NAME. Raises AttributeError where there is none."""
    module, _, path = name.partition(":")
    owner, _, attribute = path.rpartition(".")
    holder = pkgutil.resolve_name(f"{module}:{owner}" if owner else module)
    function = getattr(holder, attribute)

    @functools.wraps(function)
    def stamped(*arguments: Any, **keywords: Any) -> Any:
        if when == BEFORE:
            stamp()
            return function(*arguments, **keywords)
        outcome = function(*arguments, **keywords)
        stamp()
        return outcome

    @functools.wraps(function)
    async def stamped_after(*arguments: Any, **keywords: Any) -> Any:
        outcome = await function(*arguments, **keywords)
        stamp()
        return outcome

    is_awaited = when == AFTER and inspect.iscoroutinefunction(inspect.unwrap(function))
    setattr(holder, attribute, stamped_after if is_awaited else stamped)


def first_stamps(files: Sequence[Path], points: int, begins: npt.NDArray[np.int64], end: int) -> npt.NDArray[np.int64]:
    """When each call first came to each point behind the one before, in nanoseconds; 0 where it did not.

    Points are in the order of a call's way, so what comes by on its own, such as a report of the load, is not taken for
    the answer of a call that has not been computed. Returns [calls, points]. The calls follow each other: each lasts
    from its entry in `begins` [calls] to the next one, the last to `end`.
    """
    stamps = np.concatenate([np.fromfile(path, dtype=np.int64).reshape(-1, 2) for path in files])
    arrivals = np.zeros((len(begins), points), dtype=np.int64)
    ends, earliest = np.append(begins[1:], end), begins.copy()
    for point in range(points):
        times = np.sort(stamps[stamps[:, 0] == point, 1])
        times = np.append(times[times > 0], np.iinfo(np.int64).max)  # entries that were never written are zeros
        first = times[np.searchsorted(times, earliest)]
        came = first < ends
        arrivals[came, point] = earliest[came] = first[came]
    return arrivals


def main() -> None:
    service, stamps = os.environ["SERVICE"], StampFile(Path(os.environ["STAMPS"]))
    for name, when, point in WRAPPED[service]:
        wrap(name, when, functools.partial(stamps.add, POINTS.index(point)))
    sys.argv[0] = service
    runpy.run_module(service, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
