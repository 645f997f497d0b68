"""Mixes of lengths: texts as token ids with special tokens, so that no side is timed at tokenising. Knows no model."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from benchmarks import lengths

Texts = Sequence[npt.NDArray[np.int32]]


def of_one_length(length: int) -> Callable[[int, int], Texts]:
    """`count` texts of exactly `length` tokens."""
    return lambda count, seed: _texts(np.full(count, length), np.random.default_rng(seed))


def lognormal(count: int, seed: int) -> Texts:
    """Lengths lognormal with a mean of 126, at most 512."""
    return _texts(lengths.lognormal(count, seed), np.random.default_rng(seed))


def _texts(counts: npt.NDArray[np.int64], generator: np.random.Generator) -> Texts:
    """[CLS], whole words of BERT's vocabulary, [SEP]."""
    return [
        np.concatenate([[101], generator.integers(1996, 29_000, int(length) - 2), [102]]).astype(np.int32)
        for length in counts
    ]


def write(texts: Texts, path: str) -> None:
    """As a .npz file, for a peer in another process."""
    np.savez(path, ids=np.concatenate(texts), lengths=[len(text) for text in texts])


def read(path: str) -> Texts:
    """What `write` wrote."""
    file = np.load(path)
    return np.split(file["ids"], np.cumsum(file["lengths"])[:-1])


MIXES: dict[str, Callable[[int, int], Texts]] = {
    "32 tokens": of_one_length(32),
    "lognormal": lognormal,
    "512 tokens": of_one_length(512),
}
"""By name; each takes how many texts, and a seed."""
COUNTS = {"32 tokens": 128, "lognormal": 64, "512 tokens": 8}
"""Texts of about 4,000 tokens: what takes half a second meets a quiet half second sooner than what takes longer.
Lognormal ones of 8,000, since sorting needs several batches to be worth anything."""
