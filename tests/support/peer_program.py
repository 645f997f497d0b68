"""A peer that doubles a number, tells its settings and how often it worked, and breaks. With an argument it refuses."""

import os
import sys

import numpy as np

from benchmarks.peers.answering import Refused, answer

runs = []


def doubled(number):
    print("prepared")  # a library that prints

    def work():
        runs.append(number)
        return np.array([2.0 * number])

    return work


def settings(names):
    return lambda: np.array([int(os.environ[name]) for name in names])


def broken():
    raise RuntimeError("no")


def load():
    print("loading")  # a library that prints
    if len(sys.argv) > 1:
        raise Refused(sys.argv[1])
    return {"doubled": doubled, "settings": settings, "broken": broken, "runs": lambda: lambda: [len(runs)]}


answer(load)
