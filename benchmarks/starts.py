"""Measurements in processes of their own: where a process's memory lies is its luck, which all rounds in it share.

Of a start the lower quartile of each part of a run counts (`laps.py`), since others on a shared machine only add to it;
of several starts their mean, since each has its luck. It is a geometric mean: a ratio of two sides is then the mean of
the starts' own.
"""

import os
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, TypeVar

import numpy as np

COUNTED = "the lower quartiles of the parts of a run"
"""For people: what is told of a start."""
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Runs = Sequence[Sequence[float]]
"""Seconds of one side in one start: of each run, one figure a part."""
Times = Sequence[Runs]
"""Of one side, by start."""


def started(function: Callable[..., T], *arguments: Any) -> T:
    """What the function gives in a Python that is started for it, and ended. Exits where that one failed.

    Function, arguments and outcome go through pickle: the function is one of a module.
    """
    context = get_context("spawn")  # torch's threads do not survive a fork
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        outcome: T = receiver.recv()
    except EOFError:
        process.join()
        sys.exit(process.exitcode or 1)  # it has said why
    process.join()
    return outcome


def _send(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    sender.send(function(*arguments))


def _end_with_parent() -> None:
    """Also where that one is killed; peers of this process read the end of their input then."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def by_side(starts: Sequence[Mapping[K, Runs]]) -> dict[K, Times]:
    """What each start measured, by side."""
    return {side: [start[side] for start in starts] for side in starts[0]}


def seconds(times: Times) -> float:
    """Of one run of a side."""
    return float(np.exp(np.mean(np.log([_seconds(start) for start in times]))))


def figures(times: Times) -> dict[str, Any]:
    """One side for JSON: what counts, the starts' own, and quartiles of whole runs."""
    runs = [sum(parts) for start in times for parts in start]
    lower, median, upper = np.quantile(runs, (0.25, 0.5, 0.75))
    return {
        "seconds": round(seconds(times), 5),
        "parts": len(times[0][0]),
        "starts": [round(_seconds(start), 5) for start in times],
        "lower_quartile": round(float(lower), 5),
        "median": round(float(median), 5),
        "upper_quartile": round(float(upper), 5),
        "runs": len(runs),
    }


def against(ours: Times, other: Times) -> dict[str, float]:
    """How many times faster ours is, what the starts say that are furthest apart, and of several starts the standard
    error, as a share."""
    each = [_seconds(theirs) / _seconds(own) for own, theirs in zip(ours, other, strict=True)]
    return {
        "ratio": round(seconds(other) / seconds(ours), 3),
        "lowest": round(min(each), 3),
        "highest": round(max(each), 3),
    } | ({"error": round(float(np.std(np.log(each), ddof=1) / np.sqrt(len(each))), 3)} if len(each) > 1 else {})


def _seconds(runs: Runs) -> float:
    return float(np.quantile(runs, 0.25, axis=0).sum())
