"""The peer's end of `peer.py`: runs what it is asked for, times that alone, answers in lines. numpy only."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.laps import Laps

Make = Callable[..., Callable[[], npt.NDArray[np.float32]]]
"""Takes what was asked by name, and makes the work that is timed."""


def answer(sides: Mapping[str, Make], laps: Laps) -> None:
    """Until standard input ends. A line asks for a side with its arguments, and names a file if the outcome is wanted.

    A line ahead of them tells that all is loaded, so that nobody measures anything meanwhile. Whatever a library
    prints goes to standard error.
    """
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        work = sides[asked["side"]](**asked["arguments"])
        laps.begin()
        outcome = work()
        seconds = laps.end()
        if asked["file"]:
            np.save(asked["file"], outcome)
        answers.write(json.dumps({"seconds": seconds}) + "\n")
