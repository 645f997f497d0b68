"""Whatever is repeated: each number comes back to its own input."""

from collections.abc import Sequence
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend_service.services.deduplicate import without_repeats
from frontend_service.tokenizing.batch import NOTHING, TokenizedBatch
from shared.errors import ResultTooLarge
from shared.jobs import Classify, Encode, JobResult, MaxSim, Rows, Score, SparseRows, Work
from shared.vectors import DataType, Layout, MultiVectors
from support.repeats import LATE, MATRIX, PAIRS, TEXTS, both, given_vectors, tokenized
from support.tiny import DENSE, encode, score


def mark(*parts: object) -> int:
    """A number that says what it was made of."""
    return crc32(repr(parts).encode())


def words(values: Sequence[int]) -> bytes:
    return np.array(values, dtype="<u4").tobytes()


def keys(vectors: MultiVectors) -> list[tuple[int, bytes]]:
    """Rows and bytes of each text."""
    singles = (vectors.part(place, place + 1) for place in range(len(vectors.lengths)))
    return [(each.rows, each.data + b"|" + each.scales) for each in singles]


def telling(work: Work, some: TokenizedBatch) -> JobResult:
    """A worker whose every number says of which input it is, and which of its numbers."""
    own = [
        (
            some.tokens.lengths[place],
            repr((one.tokens.ids, one.prompt_lengths, one.second_segments, one.unattended_tails)).encode(),
        )
        for place in range(len(some.tokens))
        for one in [some.select([place])]
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
    if isinstance(work, Score):
        queries, documents = own[: work.queries], own[work.queries :]
    else:
        queries, documents = own if work.queries is None else keys(work.queries), keys(work.documents)
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
    """Exactly, with all that explains it."""
    size = min(len(first), len(second))
    queries, documents = (first[:size], second[:size]) if layout is PAIRS else (first, second)
    work = score(LATE, len(queries), layout, explain=explain)
    ours, whole = both(telling, work, read([*queries, *documents]))
    assert ours == whole


@st.composite
def some_vectors(draw: st.DrawFn, count: int, data_type: DataType) -> MultiVectors:
    """Few different rows, so that many texts are equal."""
    lengths = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    rows = sum(lengths)
    data = draw(st.lists(FEW, min_size=rows, max_size=rows))
    scales = draw(st.lists(FEW, min_size=rows, max_size=rows))
    return MultiVectors(
        data_type=data_type,
        dimensions=3,
        lengths=tuple(lengths),
        data=b"".join(bytes([each]) * data_type.row_bytes(3) for each in data),
        scales=b"".join(bytes([each]) * data_type.scale_bytes for each in scales),
    )


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(DataType), st.sampled_from(Layout), st.booleans(), st.booleans())
def test_every_score_of_given_vectors_comes_back_to_its_pair(
    data: st.DataObject, data_type: DataType, layout: Layout, explain: bool, texts: bool
) -> None:
    """Exactly, with all that explains it; given queries and texts as queries."""
    inputs = data.draw(INPUTS)
    queries = None if texts else data.draw(some_vectors(len(inputs), data_type))
    documents = data.draw(some_vectors(len(inputs) if layout is PAIRS else data.draw(st.integers(1, 9)), data_type))
    options = {"layout": layout, "unit_rows": False, "mean": False, "explain": explain}
    work = MaxSim(queries=queries, documents=documents, **options)
    ours, whole = both(telling, work, read(inputs) if texts else NOTHING)
    assert ours == whole


def test_each_input_is_sent_once() -> None:
    """Queries and documents apart from each other; of pairs, each pair."""
    some = tokenized([TEXTS[each] for each in [0, 1, 0, 1, 1, 1]])
    for work, count in ((encode(DENSE), 2), (score(LATE, 3), 3), (score(LATE, 3, PAIRS), 4)):
        once, kept, _ = without_repeats(work, some)
        assert len(kept.tokens) == count
        assert not isinstance(once, Score) or once.queries == 2
    documents = given_vectors(DataType.INT8, (2, 1), [0, 1, 1, 0], seed=1)
    work = MaxSim(queries=documents, documents=documents, layout=MATRIX, unit_rows=True, mean=False)
    once, _, _ = without_repeats(work, NOTHING)
    assert isinstance(once, MaxSim)
    assert once.queries == once.documents == documents.part(0, 2)


def test_a_repeated_sparse_vector_is_refused_by_its_whole_size_before_it_is_made() -> None:
    """How many weights it has is known only when it is computed; a thousand copies of it are not made to be counted."""
    _, _, repeat = without_repeats(encode(DENSE), tokenized([TEXTS[0]] * 1000))
    asked: list[int] = []

    def refuse(size: int) -> None:
        asked.append(size)
        raise ResultTooLarge("too large")

    assert repeat is not None
    weights = SparseRows(lengths=(3,), indices=words([1, 2, 3]), values=words([4, 5, 6]))
    with pytest.raises(ResultTooLarge):
        repeat(JobResult(sparse=weights), refuse)
    assert asked == [8 * 3 * 1000]


def test_a_request_without_repeats_is_passed_on_as_it_is() -> None:
    """The very objects. The same ids with another prompt, second text or tail are no repeat."""
    different = tokenized(TEXTS)
    documents = given_vectors(DataType.INT8, (2, 1, 0), range(3), seed=1)
    given_work = MaxSim(queries=documents, documents=documents, layout=MATRIX, unit_rows=True, mean=False)
    works = [encode(DENSE), Classify(), score(LATE, 3), score(LATE, 3, PAIRS)]
    names = ("prompt_lengths", "second_segments", "unattended_tails")
    cases: list[tuple[Work, TokenizedBatch]] = [
        *((work, different) for work in works),
        *((encode(DENSE), tokenized([TEXTS[0]] * 3, **{name: [0, 1, 2]})) for name in names),
        (score(LATE, 1), tokenized([TEXTS[0]] * 2)),  # a query is no document
        (given_work, NOTHING),
    ]
    for work, some in cases:
        once, kept, repeat = without_repeats(work, some)
        assert once is work
        assert kept is some
        assert repeat is None
