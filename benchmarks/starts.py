"""Measurements in processes of their own: where a process's memory lies is its luck, which all rounds in it share.

Of a start the fastest run counts, since others on a shared machine only add to the time of a run; of several starts
their mean, since each has its luck. It is a geometric mean: a ratio of two sides is then the mean of the starts' own.
"""

import os
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Times = Sequence[Sequence[float]]
"""Seconds of one side: of each start, one figure a round."""


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


def by_side(starts: Sequence[Mapping[K, list[float]]]) -> dict[K, Times]:
    """What each start measured, by side."""
    return {side: [start[side] for start in starts] for side in starts[0]}


def fastest(times: Times) -> float:
    """Seconds of one run of a side."""
    return float(np.exp(np.mean(np.log([min(start) for start in times]))))


def figures(times: Times) -> dict[str, Any]:
    """One side for JSON: what counts, median and quartiles of all rounds, and the rounds themselves by start."""
    lower, median, upper = np.quantile([each for start in times for each in start], (0.25, 0.5, 0.75))
    return {
        "fastest_seconds": round(fastest(times), 5),
        "median_seconds": round(float(median), 5),
        "lower_quartile_seconds": round(float(lower), 5),
        "upper_quartile_seconds": round(float(upper), 5),
        "times": [[round(each, 5) for each in start] for start in times],
    }


def against(ours: Times, other: Times) -> dict[str, float]:
    """How many times faster ours is, and what the starts say that are furthest apart."""
    each = [min(theirs) / min(own) for own, theirs in zip(ours, other, strict=True)]
    return {
        "ratio": round(fastest(other) / fastest(ours), 3),
        "lowest": round(min(each), 3),
        "highest": round(max(each), 3),
    }
