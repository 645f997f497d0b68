"""How long the sequences of a workload are, and texts of such lengths. numpy only; everything is seeded."""

from collections.abc import Sequence

import numpy as np

from benchmarks.lengths import LONGEST, lognormal
from gpu_worker.ragged.batch import Counts, Ids

__all__ = ["LONGEST", "bimodal", "lognormal", "steps", "texts", "uniform"]

WORDS_FROM = 1996
"""Where ordinary words begin in the vocabulary of BERT; small vocabularies are used from id 10 on."""


def uniform(count: int, seed: int) -> Counts:
    """[count] from 4 to 248 tokens: mean 126."""
    return np.random.default_rng(seed).integers(4, 249, count)


def bimodal(count: int, seed: int) -> Counts:
    """[count] of 32 tokens, but every eighth one of 512, in random order: mean 92."""
    lengths: Counts = np.where(np.arange(count) % 8 == 7, LONGEST, 32).astype(np.int64)
    return np.random.default_rng(seed).permutation(lengths)


def texts(lengths: Counts, vocabulary: int, seed: int) -> list[Ids]:
    """Ordinary token ids below `vocabulary`, one array [length] a text."""
    generator = np.random.default_rng(seed)
    low = WORDS_FROM if vocabulary > 2 * WORDS_FROM else 10
    return [generator.integers(low, vocabulary, length, dtype=np.int32) for length in lengths.tolist()]


def steps(lengths: Counts, budget: int, *, by_length: bool) -> list[Sequence[int]]:
    """Which texts make each step: as they come or shortest first, up to `budget` tokens, one text at least."""
    order = np.argsort(lengths, kind="stable") if by_length else np.arange(len(lengths))
    made: list[list[int]] = [[]]
    held = 0
    for index in order.tolist():
        length = int(lengths[index])
        if made[-1] and held + length > budget:
            made.append([])
            held = 0
        made[-1].append(index)
        held += length
    return list(made)
