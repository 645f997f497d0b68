"""Texts that repeat, and a request computed with and without its repeats."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from frontend_service.services.deduplicate import without_repeats
from frontend_service.tokenizing.batch import TokenizedBatch
from gpu_worker.kernels.rows import row_kernels
from shared.jobs import JobResult, RaggedTokens, Work
from shared.vectors import DataType, Layout, MultiVectors, ScoringMethod
from support.tiny import random_ids

Computing = Callable[[Work, TokenizedBatch], JobResult]
LATE, PAIRS, MATRIX = ScoringMethod.LATE_INTERACTION, Layout.PAIRS, Layout.MATRIX
EXCLAMATION = 41
"""On the skiplist of tiny-colbert."""
TEXTS = [*random_ids((7, 3, 12, 1, 30), seed=4), [EXCLAMATION] * 3]
ORDER = [0, 1, 2, 0, 3, 4, 1, 5, 0, 5, 4, 4, 2]
"""Which of them each input is."""


def tokenized(texts: Sequence[Sequence[int]], **options: Sequence[int]) -> TokenizedBatch:
    """As a tokenization makes it; prompts of no tokens unless told."""
    own: dict[str, Any] = {"prompt_lengths": (0,) * len(texts)} | {name: tuple(each) for name, each in options.items()}
    return TokenizedBatch(tokens=RaggedTokens.of(texts), truncated=(False,) * len(texts), **own)


def given_vectors(data_type: DataType, lengths: Sequence[int], order: Sequence[int], seed: int) -> MultiVectors:
    """Rows of 48 random numbers: texts of these lengths, in this order."""
    generator = torch.Generator().manual_seed(seed)
    data, scales = row_kernels.pack(torch.randn(sum(lengths), 48, generator=generator), data_type)
    some = MultiVectors(
        data_type=data_type,
        dimensions=48,
        lengths=tuple(lengths),
        data=data.numpy().tobytes(),
        scales=b"" if scales is None else scales.numpy().tobytes(),
    )
    return some.chosen(order)


def both(compute: Computing, work: Work, some: TokenizedBatch) -> tuple[JobResult, JobResult]:
    """The result of the request without its repeats, made whole, and that of the request as it is."""
    once, kept, repeat = without_repeats(work, some)
    if repeat is None:
        assert once is work
        assert kept is some
        return compute(once, kept), compute(work, some)
    return repeat(compute(once, kept), anything), compute(work, some)


def anything(_: int) -> None:
    """Answers of any size are taken."""
