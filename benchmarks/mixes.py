"""Mixes of lengths: texts as token ids with special tokens, so that no side is timed at tokenising. Knows no model."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Texts = Sequence[npt.NDArray[np.int32]]
SIGMA = 0.8
SHORTEST, LONGEST = 4, 512


def of_one_length(length: int) -> Callable[[int, int], Texts]:
    """`count` texts of exactly `length` tokens."""
    return lambda count, seed: _texts(np.full(count, length), np.random.default_rng(seed))


def lognormal(count: int, seed: int, mean: float = 126.0) -> Texts:
    """Lengths lognormal (sigma 0.8) with that mean after cutting at 512."""
    lengths, scale = np.full(count, SHORTEST), mean
    for _ in range(40):  # cutting takes from the mean; find the scale that restores it
        draw = np.random.default_rng(seed).lognormal(np.log(scale) - SIGMA**2 / 2, SIGMA, count)
        lengths = np.clip(draw.round(), SHORTEST, LONGEST).astype(int)
        scale *= mean / lengths.mean()
    return _texts(lengths, np.random.default_rng(seed))


def _texts(lengths: npt.NDArray[np.int64], generator: np.random.Generator) -> Texts:
    """[CLS], whole words of BERT's vocabulary, [SEP]."""
    return [
        np.concatenate([[101], generator.integers(1996, 29_000, int(length) - 2), [102]]).astype(np.int32)
        for length in lengths
    ]


MIXES: dict[str, Callable[[int, int], Texts]] = {
    "32 tokens": of_one_length(32),
    "lognormal": lognormal,
    "512 tokens": of_one_length(512),
}
"""By name; each takes how many texts, and a seed."""
