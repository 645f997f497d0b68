"""Split of a batch into attention launches, so that one long sequence does not leave a grid mostly empty. No torch.

FlashAttention starts a program for every tile of the longest sequence, for every sequence and head. One text of 8,000
tokens beside 500 short ones makes 63 times 501 tiles, and all but some 600 of them have nothing to do.
"""

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

TILE = 128
"""Tokens of a sequence that one program of the kernel takes."""
LEAST_SAVED = 512
"""Fewest tiles that a second launch must save: times the heads, thousands of programs, about what a launch costs."""


def launches(lengths: Counts) -> list[tuple[int, int]]:
    """Sequences `start` to `stop` of each launch: one, or two where that saves half of the tiles and LEAST_SAVED.

    `lengths` [S] may have any order; the batch is cut where the fewest tiles remain.
    """
    count = len(lengths)
    if count == 1:
        return [(0, 1)]
    tiles = -(-lengths // TILE)
    longest_before, longest_after = np.maximum.accumulate(tiles)[:-1], np.maximum.accumulate(tiles[::-1])[-2::-1]
    places = np.arange(1, count)
    cost = places * longest_before + (count - places) * longest_after
    whole = count * int(tiles.max(initial=0))
    least = int(cost.min(initial=whole))
    if whole - least < LEAST_SAVED or 2 * least > whole:
        return [(0, count)]
    cut = int(places[cost.argmin()])
    return [(0, cut), (cut, count)]
