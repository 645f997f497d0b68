"""A measurement in a process of its own: where a process's memory lies is its luck, which all rounds in it share."""

import os
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


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


def joined(times: Sequence[Mapping[K, list[float]]]) -> dict[K, list[float]]:
    """Seconds of every side: the rounds of one start after those of the other."""
    return {side: [each for start in times for each in start[side]] for side in times[0]}
