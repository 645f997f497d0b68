"""The frontend's leaving out of repeats against the worker that knows nothing of it."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CPU, DENSE, MULTI, SPARSE, encode, random_ids, raw, run, score

from frontend_service.distinct import without_repeats
from frontend_service.tokenized import NOTHING, Tokenized
from gpu_worker.engine import ModelEngine
from gpu_worker.heads import packing
from gpu_worker.model.loading import load
from shared.errors import ResultTooLarge
from shared.jobs import Classify, Encode, Job, JobResult, MaxSim, Rows, Score, SparseRows, Work
from shared.ragged import RaggedTokens
from shared.vectors import DataType, InputType, Layout, MultiVectors, ScoringMethod

Computing = Callable[[Work, Tokenized], JobResult]
LATE, PAIRS, MATRIX = ScoringMethod.LATE_INTERACTION, Layout.PAIRS, Layout.MATRIX
EXCLAMATION = 41
"""On the skiplist of tiny-colbert."""
TEXTS = [*random_ids((7, 3, 12, 1, 30), seed=4), [EXCLAMATION] * 3]
ORDER = [0, 1, 2, 0, 3, 4, 1, 5, 0, 5, 4, 4, 2]
"""Which of them each input is."""


def tokenized(texts: Sequence[Sequence[int]], **options: Sequence[int]) -> Tokenized:
    """As a tokenization makes it; prompts of no tokens unless told."""
    own: dict[str, Any] = {"prompt_lengths": (0,) * len(texts)} | {name: tuple(each) for name, each in options.items()}
    return Tokenized(tokens=RaggedTokens.of(texts), truncated=(False,) * len(texts), **own)


def given_vectors(data_type: DataType, lengths: Sequence[int], order: Sequence[int], seed: int) -> MultiVectors:
    """Rows of 48 random numbers: texts of these lengths, in this order."""
    generator = torch.Generator().manual_seed(seed)
    data, scales = packing.pack(torch.randn(sum(lengths), 48, generator=generator), data_type)
    some = MultiVectors(
        data_type=data_type,
        dimensions=48,
        lengths=tuple(lengths),
        data=data.numpy().tobytes(),
        scales=b"" if scales is None else scales.numpy().tobytes(),
    )
    return some.chosen(order)


@cache
def engine(name: str) -> ModelEngine:
    return ModelEngine(load(f"random:{name}", CPU))


def computed_by(name: str) -> Computing:
    """The engine of a tiny model."""

    def compute(work: Work, some: Tokenized) -> JobResult:
        beside = {"second_segments": some.second_segments, "unattended_tails": some.tails}
        job = Job(id=1, work=work, tokens=some.tokens, prompt_lengths=some.prompt_lengths, **beside)
        return run(engine(name), [job])[0]

    return compute


def both(compute: Computing, work: Work, some: Tokenized) -> tuple[JobResult, JobResult]:
    """The result of the request without its repeats, made whole, and that of the request as it is."""
    once, kept, repeat = without_repeats(work, some)
    if repeat is None:
        assert once is work
        assert kept is some
        return compute(once, kept), compute(work, some)
    return repeat(compute(once, kept), anything), compute(work, some)


def anything(_: int) -> None:
    """Answers of any size are taken."""


def numbers(rows: Rows, data_type: DataType) -> np.ndarray:
    """Packed rows as float32."""
    count = len(rows.data) // data_type.row_bytes(rows.dimensions)
    held = {"data": rows.data, "scales": rows.scales}
    vectors = MultiVectors(data_type=data_type, dimensions=rows.dimensions, lengths=(count,), **held)
    return packing.unpack(vectors).numpy()


def assert_close(
    ours: JobResult, theirs: JobResult, data_type: DataType = DataType.FLOAT32, *, ties: bool = False
) -> None:
    """Lengths and ids equal, every number but for rounding: in INT8 and BFLOAT16 by a step. With `ties`,
    as binary rows have, either of two equally similar rows may win.
    """
    step = {DataType.INT8: 0.05, DataType.BFLOAT16: 0.05, DataType.FLOAT16: 0.01}.get(data_type, 1e-4)
    for name in ("row_lengths", "token_ids"):
        assert getattr(ours, name) == getattr(theirs, name)
    won, lost = np.frombuffer(ours.winners, "<i4"), np.frombuffer(theirs.winners, "<i4")
    assert won.shape == lost.shape
    assert np.count_nonzero(won != lost) <= (len(won) / 50 if ties else 0)
    for mine, other in ((ours.dense, theirs.dense), (ours.tokens, theirs.tokens)):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            np.testing.assert_allclose(numbers(mine, data_type), numbers(other, data_type), rtol=0, atol=step)
    assert (ours.sparse is None) == (theirs.sparse is None)
    found = [(ours.scores, theirs.scores), (ours.similarities, theirs.similarities)]
    if ours.sparse is not None and theirs.sparse is not None:
        assert (ours.sparse.lengths, ours.sparse.indices) == (theirs.sparse.lengths, theirs.sparse.indices)
        found.append((ours.sparse.values, theirs.sparse.values))
    for own, others in found:
        np.testing.assert_allclose(np.frombuffer(own, "<f4"), np.frombuffer(others, "<f4"), rtol=1e-5, atol=1e-4)


def split(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Entries of one size, by text."""
    ends, size = np.cumsum([0, *lengths]).tolist(), len(data) // max(1, sum(lengths))
    return [data[size * start : size * stop] for start, stop in pairwise(ends)]


def pieces(result: JobResult, texts: int) -> list[tuple[bytes, ...]]:
    """All bytes that each text got."""
    one, rows = [1] * texts, result.row_lengths or [1] * texts
    dense, tokens = result.dense or Rows(dimensions=1, data=b""), result.tokens or Rows(dimensions=1, data=b"")
    sparse = result.sparse or SparseRows(lengths=(0,) * texts, indices=b"", values=b"")
    parts = [(dense.data, one), (dense.scales, one), (tokens.data, rows), (tokens.scales, rows)]
    parts += [(result.token_ids, rows), (result.scores, rows)]
    parts += [(sparse.indices, sparse.lengths), (sparse.values, sparse.lengths)]
    return list(zip(*(split(*part) for part in parts), strict=True))


def assert_repeated(got: Sequence[Any], of: Sequence[Any]) -> None:
    """Equal inputs got the same, and others not all the same."""
    found: dict[Any, set[Any]] = {}
    for key, piece in zip(of, got, strict=True):
        found.setdefault(key, set()).add(piece)
    assert {len(each) for each in found.values()} == {1}
    assert len(set.union(*found.values())) > 1


ENCODES = {
    "tiny-bert": encode(DENSE, MULTI, dimensions=20),
    "tiny-bge-m3": encode(DENSE, SPARSE, MULTI, token_ids=True),
    "tiny-colbert": encode(MULTI, token_ids=True, input_type=InputType.DOCUMENT),
    "tiny-splade": encode(SPARSE, sparse_top_k=30),
}


@pytest.mark.parametrize("name", ENCODES)
def test_vectors(name: str) -> None:
    """Of every output, texts without a token row included; those of equal texts to the last bit."""
    some = tokenized([TEXTS[each] for each in ORDER])
    ours, whole = both(computed_by(name), ENCODES[name], some)
    assert_close(ours, whole)
    assert_repeated(pieces(ours, len(ORDER)), ORDER)
    assert (0 in ours.row_lengths) == (name in ("tiny-bge-m3", "tiny-colbert"))


@pytest.mark.parametrize("data_type", DataType)
def test_vectors_of_every_data_type(data_type: DataType) -> None:
    """With their scales, dense and of tokens."""
    work = raw(DENSE, MULTI, data_type=data_type)
    ours, whole = both(computed_by("tiny-bge-m3"), work, tokenized([TEXTS[each] for each in ORDER]))
    assert_close(ours, whole, data_type)
    assert_repeated(pieces(ours, len(ORDER)), ORDER)


def test_vectors_without_a_row() -> None:
    """Texts of which every token is skipped have no bytes to repeat."""
    work = encode(MULTI, token_ids=True, input_type=InputType.DOCUMENT)
    ours, whole = both(computed_by("tiny-colbert"), work, tokenized([[EXCLAMATION]] * 3 + [[EXCLAMATION] * 2]))
    assert ours.row_lengths == whole.row_lengths == (0, 0, 0, 0)
    assert ours.tokens == whole.tokens == Rows(dimensions=48, data=b"")


@pytest.mark.parametrize("token_id", [None, TEXTS[0][2], 999])
def test_labels_of_tokens(token_id: int | None) -> None:
    """Of all, of some, of none."""
    work = Classify(tokens=True, token_id=token_id)
    ours, whole = both(computed_by("tiny-token-classifier"), work, tokenized([TEXTS[each] for each in ORDER]))
    assert_close(ours, whole)
    assert sum(ours.row_lengths) == {None: sum(len(TEXTS[each]) for each in ORDER), 999: 0}.get(token_id, 3)
    if token_id is None:
        assert_repeated(pieces(ours, len(ORDER)), ORDER)


def test_labels_of_pairs() -> None:
    """The same ids are another input where the second text begins elsewhere."""
    order = [0, 1, 0, 2, 2, 0, 4, 1]
    seconds = [1, 1, 1, 5, 6, 2, 9, 1]
    some = tokenized([TEXTS[each] for each in order], second_segments=seconds)
    ours, whole = both(computed_by("tiny-cross-encoder"), Classify(), some)
    assert_close(ours, whole)
    assert_repeated(pieces(ours, len(order)), list(zip(order, seconds, strict=True)))
    assert len(set(pieces(ours, len(order)))) == 6


SCORES = {
    "tiny-bert": (ScoringMethod.DENSE, {}),
    "tiny-colbert": (LATE, {"mean": True}),
    "tiny-splade": (ScoringMethod.SPARSE, {}),
    "tiny-bge-m3": (ScoringMethod.HYBRID, {}),
}
QUERIES = [0, 4, 0, 2, 4, 0, 1, 1, 0, 4, 2, 0, 0]
"""Which text each query of `ORDER`'s documents is."""


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, layout: Layout) -> None:
    """By every method; of equal queries with equal documents to the last bit."""
    method, options = SCORES[name]
    some = tokenized([TEXTS[each] for each in [*QUERIES, *ORDER]])
    ours, whole = both(computed_by(name), score(method, len(QUERIES), layout, **options), some)
    assert_close(ours, whole)
    pairs = list(zip(QUERIES, ORDER, strict=True) if layout is PAIRS else product(QUERIES, ORDER))
    assert_repeated(np.frombuffer(ours.scores, "<f4").tolist(), pairs)


def test_explained_scores() -> None:
    """A document's winners stay with it; those of equal documents are the same."""
    some = tokenized([TEXTS[each] for each in [2, *ORDER]], tails=[4] + [0] * len(ORDER))
    ours, whole = both(computed_by("tiny-colbert"), score(LATE, 1, explain=True), some)
    assert_close(ours, whole)
    for part in (ours.winners, ours.similarities):
        assert_repeated(split(part, [len(TEXTS[2])] * len(ORDER)), ORDER)


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("data_type", DataType)
def test_given_vectors(data_type: DataType, layout: Layout, explain: bool) -> None:
    """Texts without rows included; given queries and texts as queries."""
    documents = given_vectors(data_type, (4, 1, 9, 2, 3, 0), ORDER, seed=1)
    queries = given_vectors(data_type, (2, 5, 3, 1, 0), QUERIES, seed=2)
    pairs = list(zip(QUERIES, ORDER, strict=True) if layout is PAIRS else product(QUERIES, ORDER))
    texts = tokenized([TEXTS[each] for each in QUERIES])
    for asked, some in ((queries, NOTHING), (None, texts)):
        options = {"layout": layout, "unit_rows": True, "mean": True, "explain": explain}
        work = MaxSim(queries=asked, documents=documents, **options)
        ours, whole = both(computed_by("tiny-colbert"), work, some)
        assert_close(ours, whole, ties=data_type is DataType.BINARY)
        assert_repeated(np.frombuffer(ours.scores, "<f4").tolist(), pairs)
        widths = queries.lengths if asked else texts.tokens.lengths
        if explain:
            own = [width for width in widths for _ in range(1 if layout is PAIRS else len(ORDER))]
            assert_repeated(split(ours.winners, own), pairs)
            assert_repeated(split(ours.similarities, own), pairs)


def mark(*parts: object) -> int:
    """A number that says what it was made of."""
    return crc32(repr(parts).encode())


def words(values: Sequence[int]) -> bytes:
    return np.array(values, dtype="<u4").tobytes()


def keys(vectors: MultiVectors) -> list[tuple[int, bytes]]:
    """Rows and bytes of each text."""
    singles = (vectors.part(place, place + 1) for place in range(len(vectors.lengths)))
    return [(each.rows, each.data + b"|" + each.scales) for each in singles]


def telling(work: Work, some: Tokenized) -> JobResult:
    """A worker whose every number says of which input it is, and which of its numbers."""
    own = [
        (
            some.tokens.lengths[place],
            repr((one.tokens.ids, one.prompt_lengths, one.second_segments, one.tails)).encode(),
        )
        for place in range(len(some.tokens))
        for one in [some.part([place])]
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


def read(inputs: list[tuple[list[int], int, int, int]]) -> Tokenized:
    texts, prompts, seconds, tails = zip(*inputs, strict=True)
    return tokenized(texts, prompt_lengths=prompts, second_segments=seconds, tails=tails)


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
    names = ("prompt_lengths", "second_segments", "tails")
    cases: list[tuple[Work, Tokenized]] = [
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
