"""The rows of a batch whose sequences have an adapter. Numbers on the host alone."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from gpu_worker.ragged.token_types import Counts


class AdapterRows(NamedTuple):
    """Rows `start` to `stop` - 1 of a batch, which belong to neighbouring sequences with the adapter `number`."""

    number: int
    start: int
    stop: int


def adapter_rows(adapters: Sequence[int], offsets: Counts) -> tuple[AdapterRows, ...]:
    """The rows of each run of neighbouring sequences with one adapter. `adapters` [S]: their numbers, 0 for none, whose
    rows are left out; `offsets` [S + 1]: where sequences begin."""
    runs, place = [], 0
    for number, run in groupby(adapters):
        count = len(list(run))
        if number:
            runs.append(AdapterRows(number, int(offsets[place]), int(offsets[place + count])))
        place += count
    return tuple(runs)
