"""Into how many launches attention is cut, so that one long sequence does not make its grid mostly empty. No torch.

FlashAttention starts a program for every tile of the longest sequence, for every sequence and head. One text of 8,000
tokens beside 500 short ones is 63 times 501 tiles, of which all but some 600 have nothing to do.
"""

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

TILE = 128
"""Tokens of a sequence that a program takes."""
LEAST_SAVED = 512
"""Tiles; times the heads these are thousands of programs, about what a second launch costs."""


def launches(lengths: Counts) -> list[tuple[int, int]]:
    """Sequences `start` to `stop` of each launch: one, or two where the second saves half of the tiles and enough.

    The cut that leaves the fewest tiles is found for any order; steps have their sequences in ascending length.
    """
    count = len(lengths)
    tiles = -(-lengths // TILE)
    before, behind = np.maximum.accumulate(tiles)[:-1], np.maximum.accumulate(tiles[::-1])[-2::-1]
    places = np.arange(1, count)
    cost = places * before + (count - places) * behind
    whole = count * int(tiles.max(initial=0))
    least = int(cost.min(initial=whole))
    if whole - least < LEAST_SAVED or 2 * least > whole:
        return [(0, count)]
    cut = int(places[cost.argmin()])
    return [(0, cut), (cut, count)]
