"""Texts that repeat, and a request computed with and without its repeats."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from frontend_service.domain.limits import Limits
from frontend_service.services.repeats import Distinct, ScoreTable, take_sequences
from frontend_service.tokenizing.tokens import TokenizedBatch
from shared.jobs import JobResult, RaggedTokens, Score, Work
from shared.vectors import Layout, ScoringMethod
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


def both(compute: Computing, work: Work, some: TokenizedBatch) -> tuple[JobResult, JobResult]:
    """The result of the request without its repeats, made whole, and that of the request as it is."""
    texts = keys(some)
    whole = compute(work, some)
    if not isinstance(work, Score):
        distinct = Distinct.among(texts)
        return take_sequences(compute(work, some.at(distinct.first)), distinct.inverse, Limits()), whole
    count = work.queries
    if work.layout is PAIRS:
        queries = documents = Distinct.among(zip(texts[:count], texts[count:], strict=True))
        table = ScoreTable.of_pairs(queries)
    else:
        queries, documents = Distinct.among(texts[:count]), Distinct.among(texts[count:])
        table = ScoreTable(rows=queries.inverse, columns=documents.inverse)
    once = some.at([*queries.first, *(count + place for place in documents.first)])
    return table.take(compute(replace(work, queries=len(queries.first)), once)), whole


def keys(some: TokenizedBatch) -> list[tuple[object, ...]]:
    """All that the rows of each sequence depend on."""
    zeros = (0,) * len(some.tokens)
    texts = (some.tokens.ids[4 * start : 4 * stop] for start, stop in pairwise(some.tokens.offsets))
    options = (some.prompt_lengths, some.second_segments or zeros, some.unattended_tails or zeros)
    return list(zip(texts, *options, strict=True))
