"""Whatever is repeated: each number comes back to its own input."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend_service.domain.limits import ENVELOPE_BYTES, Limits
from frontend_service.services.repeats import Distinct, ScoreTable, take_sequences
from frontend_service.tokenizing.tokens import TokenizedBatch
from shared.errors import ResultTooLarge
from shared.jobs import Classify, Encode, JobResult, RaggedTokens, Rows, Score, SparseRows, Work
from shared.vectors import Layout, ScoringMethod
from support.tiny import DENSE, encode, score

Computing = Callable[[Work, TokenizedBatch], JobResult]
LATE, PAIRS = ScoringMethod.LATE_INTERACTION, Layout.PAIRS


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


def mark(*parts: object) -> int:
    """A number that says what it was made of."""
    return crc32(repr(parts).encode())


def words(values: Sequence[int]) -> bytes:
    return np.array(values, dtype="<u4").tobytes()


def telling(work: Work, some: TokenizedBatch) -> JobResult:
    """A worker whose every number says of which input it is, and which of its numbers."""
    own = [
        (
            some.tokens.lengths[place],
            repr((one.tokens.ids, one.prompt_lengths, one.second_segments, one.unattended_tails)).encode(),
        )
        for place in range(len(some.tokens))
        for one in [some.at([place])]
    ]
    if isinstance(work, Encode | Classify):
        marks = [mark(key) for key in own]
        rows = [mark(each, row) for each in marks for row in range(each % 4)]
        result = JobResult(dense=Rows(dimensions=1, data=words(marks), scales=words(marks)), scores=words(marks))
        if isinstance(work, Classify) and not work.tokens:
            return result
        counts = tuple(each % 4 for each in marks)
        tokens = Rows(dimensions=2, data=words(np.repeat(rows, 2)), scales=words(rows))
        lengths = tuple(each // 4 % 3 for each in marks)
        pairs = words([mark(each, "pair", pair) for each in marks for pair in range(each // 4 % 3)])
        sparse = SparseRows(lengths=lengths, indices=pairs, values=pairs)
        beside = {"token_ids": words(rows), "scores": words(np.repeat(rows, 3))}
        return JobResult(dense=result.dense, tokens=tokens, sparse=sparse, row_lengths=counts, **beside)
    assert isinstance(work, Score)
    queries, documents = own[: work.queries], own[work.queries :]
    met = list(zip(queries, documents, strict=True) if work.layout is PAIRS else product(queries, documents))
    explained = [mark(*pair, place) for pair in met for place in range(pair[0][0])] if work.explain else []
    return JobResult(
        scores=words([mark(*pair) for pair in met]),
        winners=words(explained),
        similarities=words([each ^ 1 for each in explained]),
    )


FEW = st.integers(0, 1)
INPUTS = st.lists(st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=3), FEW, FEW, FEW), min_size=1, max_size=9)


def read(inputs: list[tuple[list[int], int, int, int]]) -> TokenizedBatch:
    texts, prompts, seconds, tails = zip(*inputs, strict=True)
    return tokenized(texts, prompt_lengths=prompts, second_segments=seconds, unattended_tails=tails)


@settings(max_examples=200, deadline=None)
@given(INPUTS, st.sampled_from([encode(DENSE), Classify(), Classify(tokens=True)]))
def test_every_number_of_a_sequence_comes_back_to_it(inputs: list[Any], work: Work) -> None:
    """Exactly, whatever is repeated and however many rows each has."""
    ours, whole = both(telling, work, read(inputs))
    assert ours == whole


@settings(max_examples=200, deadline=None)
@given(INPUTS, INPUTS, st.sampled_from(Layout), st.booleans())
def test_every_score_comes_back_to_its_pair(first: list[Any], second: list[Any], layout: Layout, explain: bool) -> None:
    """Exactly, with all that explains it: the winners of a single query."""
    first = first[:1] if explain else first
    size = min(len(first), len(second))
    queries, documents = (first[:size], second[:size]) if layout is PAIRS else (first, second)
    work = score(LATE, len(queries), layout, explain=explain)
    ours, whole = both(telling, work, read([*queries, *documents]))
    assert ours == whole


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.lists(st.integers(0, 2), min_size=1, max_size=9))
def test_the_tokens_of_all_pairs_are_counted_without_them(queries: list[int], documents: list[int]) -> None:
    """Sixteen million pairs of a few texts are refused before they are made."""
    rows, columns = Distinct.among(queries), Distinct.among(documents)
    table = ScoreTable(rows=rows.inverse, columns=columns.inverse)
    lengths = range(3, 3 + len(rows.first) * len(columns.first))
    assert table.total(lengths) == sum(lengths[cell] for cell in table.cells)


def test_a_repeated_sparse_vector_is_refused_by_its_whole_size_before_it_is_made() -> None:
    """How many weights it has is known only when it is computed; a thousand copies of it are not made to be counted."""
    weights = SparseRows(lengths=(3,), indices=words([1, 2, 3]), values=words([4, 5, 6]))
    places = np.zeros(1000, dtype=np.int64)
    limits = Limits(message_bytes=ENVELOPE_BYTES + 8 * 3 * 1000)
    assert take_sequences(JobResult(sparse=weights), places, limits).sparse is not None
    with pytest.raises(ResultTooLarge, match="24000 bytes"):
        take_sequences(JobResult(sparse=weights), places, Limits(message_bytes=limits.message_bytes - 1))
