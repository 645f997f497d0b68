"""Token pooling, and jobs whose documents are pooled, against sentence-transformers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.multi_vector_encoder.modules.token_pooling import HierarchicalTokenPooling
from threadpoolctl import ThreadpoolController

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.pooled import PooledEncodeJob
from gpu_worker.kernels.rows.token_pooling import pool
from gpu_worker.model.heads.heads import MultiVectorHead
from gpu_worker.model.loading import load
from gpu_worker.schedule.interface import JobSlice
from shared.card import LateInteraction
from shared.errors import InputTooLong, Internal, InvalidInput
from shared.jobs import Encode, Job, RaggedTokens, Score
from shared.packing import pack
from shared.vectors import DataType, InputType, Layout, OutputKind, ScoringMethod, TokenPooling
from support.in_pieces import cut_texts, run_in_steps
from support.random_models import random_model
from support.tiny import CPU, DENSE, MULTI, ask, dense_rows, encode, random_ids, run, score, scores, token_rows

seeds = st.integers(0, 2**32 - 1)
factors = st.sampled_from([1.0, 1.5, 2.0, 3.0, 10.0]) | st.floats(1, 10)


def reference(rows: np.ndarray, factor: float, protected: int = 1, normalize: bool = True) -> np.ndarray:
    pooling = HierarchicalTokenPooling(factor, num_protected_tokens=protected, normalize_embeddings=normalize)
    (pooled,) = pooling.pool([torch.from_numpy(rows)])
    return pooled.numpy()


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def agree(rows: np.ndarray, factor: float, protected: int, normalize: bool) -> int:
    """How many rows both leave."""
    expected = reference(rows, factor, protected, normalize)
    ours = pool(rows, TokenPooling(pool_factor=factor, protected_tokens=protected, normalize=normalize))
    assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-6)
    return len(ours)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 60), st.integers(2, 16), factors, st.integers(0, 3), st.booleans(), st.booleans(), seeds)
def test_random_rows(
    n: int, width: int, factor: float, protected: int, of_unit: bool, normalize: bool, seed: int
) -> None:
    """The same rows in the same order, whatever the length of those that come; of unit rows as many as predicted."""
    rows = np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)
    left = agree(unit(rows) if of_unit else rows, factor, protected, normalize)
    assert left <= TokenPooling(pool_factor=factor, protected_tokens=protected).rows_left(n)
    assert left == TokenPooling(pool_factor=factor, protected_tokens=protected).rows_left(n) or not of_unit


@given(st.integers(1, 40), st.integers(1, 4), factors)
def test_equal_rows_whose_products_are_exact(n: int, kinds: int, factor: float) -> None:
    """Ties are broken as the reference breaks them; with equal distances fewer clusters than asked for are left."""
    agree(np.resize(np.eye(kinds, 8, dtype=np.float32), (n, 8)), factor, 1, True)


@given(st.integers(1, 40), st.integers(2, 16), factors, seeds)
def test_one_row_many_times(n: int, width: int, factor: float, seed: int) -> None:
    """Gives that row, as often as predicted at most; how often hangs on how the product of a row with itself rounds."""
    row = unit(np.random.default_rng(seed).standard_normal((1, width))).astype(np.float32)
    pooled = pool(np.tile(row, (n, 1)), TokenPooling(pool_factor=factor))
    assert 1 <= len(pooled) <= TokenPooling(pool_factor=factor).rows_left(n)
    np.testing.assert_allclose(pooled, np.tile(row, (len(pooled), 1)), rtol=0, atol=1e-6)


LATE, PAIRS = ScoringMethod.LATE_INTERACTION, Layout.PAIRS
LENGTHS = (1, 2, 3, 4, 9, 30, 75)
TWICE = TokenPooling(pool_factor=2)
POOLINGS = [
    TokenPooling(pool_factor=1),
    TWICE,
    TokenPooling(pool_factor=3, protected_tokens=0),
    TokenPooling(pool_factor=3, protected_tokens=5, normalize=False),
    TokenPooling(pool_factor=1000),
]
SKIPPED = (20, 21, 22)


@pytest.fixture(scope="module")
def engine() -> ModelEngine:
    """A ColBERT shape that skips three ids in documents."""
    reading = LateInteraction(query_length=32, document_length=300, skiplist=SKIPPED)
    return ModelEngine(replace(load(random_model("tiny-colbert"), CPU), late_interaction=reading))


@pytest.fixture(scope="module")
def documents() -> list[list[int]]:
    """Documents of mixed lengths, the last one of skipped tokens alone, which has no rows."""
    return [*random_ids(LENGTHS, seed=3), [20, 21, 22, 20]]


def expected_rows(engine: ModelEngine, texts: list[list[int]], pooling: TokenPooling) -> list[np.ndarray]:
    """The reference's rows, from those that the engine gives unpooled."""
    whole = token_rows(ask(engine, encode(MULTI, input_type=InputType.DOCUMENT), texts))
    return [reference(rows, pooling.pool_factor, pooling.protected_tokens, pooling.normalize) for rows in whole]


def pooled(pooling: TokenPooling, *outputs: OutputKind, **options: object) -> Encode:
    return encode(*(outputs or (MULTI,)), input_type=InputType.DOCUMENT, pooling=pooling, **options)


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
@pytest.mark.parametrize("width", [None, 1])
def test_an_encode_pools_each_document(
    engine: ModelEngine, documents: list[list[int]], pooling: TokenPooling, width: int | None
) -> None:
    """In one step and in several; the reference gives the same number of rows and the same rows."""
    job = Job(id=1, work=pooled(pooling), tokens=RaggedTokens.of(documents))
    found = token_rows(run(engine, [job], width)[0])
    expected = expected_rows(engine, documents, pooling)
    assert [len(rows) for rows in found] == [len(rows) for rows in expected]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("data_type", DataType)
def test_pooled_rows_are_packed_last(engine: ModelEngine, documents: list[list[int]], data_type: DataType) -> None:
    """With fewer dimensions, which are cut before; a dense output beside them is as it always is."""
    alone = ask(engine, pooled(TWICE, dimensions=16), documents)
    result = ask(engine, pooled(TWICE, dimensions=16, data_type=data_type), documents)
    packed = pack(np.concatenate(token_rows(alone)), data_type)
    assert result.tokens is not None
    assert (bytes(result.tokens.data), bytes(result.tokens.scales)) == (packed.data, packed.scales)
    assert result.row_lengths == alone.row_lengths


def test_a_dense_output_beside_pooled_rows() -> None:
    engine, texts = ModelEngine(load(random_model("tiny-bge-m3"), CPU)), random_ids(LENGTHS, seed=3)
    both = ask(engine, pooled(TWICE, MULTI, DENSE), texts)
    np.testing.assert_array_equal(dense_rows(both), dense_rows(ask(engine, encode(DENSE), texts)))
    expected = expected_rows(engine, texts, TWICE)
    np.testing.assert_allclose(np.concatenate(token_rows(both)), np.concatenate(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
@pytest.mark.parametrize("unit_rows", [True, False])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("layout", Layout)
def test_a_score_compares_pooled_documents(
    engine: ModelEngine, documents: list[list[int]], pooling: TokenPooling, unit_rows: bool, mean: bool, layout: Layout
) -> None:
    """Queries are not pooled, and have the length that is asked for; documents are clustered at unit length."""
    queries = random_ids((8, 3, 1, 12, 5, 6, 7, 20), seed=4)[: len(documents) if layout is PAIRS else 3]
    work = score(LATE, len(queries), layout, unit_rows=unit_rows, mean=mean, pooling=pooling)
    job = Job(id=1, work=work, tokens=RaggedTokens.of([*queries, *documents]))
    kept = encode(MULTI, input_type=InputType.QUERY, normalize_tokens=unit_rows)
    query_rows = token_rows(ask(engine, kept, queries))
    table = np.array(
        [
            [(query @ rows.T).max(axis=1).sum() / (len(query) if mean else 1) if len(rows) else -1e9 for rows in left]
            for query in query_rows
            for left in [expected_rows(engine, documents, pooling)]
        ]
    )
    expected = np.diag(table)[:, None] if layout is PAIRS else table
    for width in (None, 2):
        found = scores(run(engine, [job], width)[0], expected.shape[1])
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def test_products_take_one_thread_while_documents_are_pooled(
    engine: ModelEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then as many as before: a program with an Engine in it may want more."""
    libraries, seen = ThreadpoolController().select(internal_api="openblas"), []

    def threads() -> set[int]:
        return {library.num_threads for library in libraries.lib_controllers}

    monkeypatch.setattr(PooledEncodeJob, "pool", lambda *_: seen.append(threads()))
    with libraries.limit(limits=2):
        with pytest.raises(KeyError):
            ask(engine, pooled(TWICE), [[30, 31]])
        assert (seen, threads()) == ([{1}], {2})


def other_jobs(documents: list[list[int]]) -> list[Job]:
    """Jobs that pool and jobs that do not."""
    queries = random_ids((8, 3), seed=4)
    works: list[tuple[Encode | Score, list[list[int]]]] = [
        (pooled(TWICE), documents),
        (encode(MULTI), documents),
        (score(LATE, 2, pooling=TWICE), [*queries, *documents]),
        (score(LATE, 2), [*queries, *documents]),
    ]
    return [Job(id=number, work=work, tokens=RaggedTokens.of(texts)) for number, (work, texts) in enumerate(works)]


@pytest.mark.parametrize("seed", range(3))
def test_in_any_company_and_in_pieces(documents: list[list[int]], seed: int) -> None:
    """Two steps under way, texts cut where they are longer than 16 tokens; with the same bits where the model has
    these."""
    engine = ModelEngine(load(random_model("tiny-qwen3"), CPU))
    jobs = other_jobs(documents)
    alone = [run(engine, [job])[0] for job in jobs]
    with cut_texts(engine, longest=16):
        together = run_in_steps(engine, jobs, seed)
    for one, other in zip(alone, together, strict=True):
        assert one.row_lengths == other.row_lengths
        if one.tokens is None:
            np.testing.assert_allclose(scores(other), scores(one), rtol=0, atol=2e-5)
        else:
            np.testing.assert_allclose(*(np.concatenate(token_rows(result)) for result in (other, one)), atol=1e-5)
        if not engine.model.other_bits:
            assert (one.scores, one.tokens) == (other.scores, other.tokens)


class Broken(MultiVectorHead):
    """A head that makes no numbers of the last token of a batch of 9 tokens, or of more than 70."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = super().forward(hidden).clone()
        if len(rows) == 9 or len(rows) > 70:
            rows[-1] = float("nan")
        return rows


@pytest.fixture
def broken(engine: ModelEngine) -> ModelEngine:
    head = engine.model.heads.multi_vector
    assert head is not None
    other = Broken(head.layers, head.width, skip_first=head.skip_first, mean=head.mean)
    return ModelEngine(replace(engine.model, heads=replace(engine.model.heads, multi_vector=other)))


@pytest.mark.parametrize("work", [pooled(TWICE), score(LATE, 1, pooling=TWICE)], ids=["encode", "score"])
def test_rows_that_are_no_numbers_fail_their_job_alone(broken: ModelEngine, work: Encode | Score) -> None:
    """The longest text is the last one of the batch."""
    jobs = [
        Job(id=number, work=work, tokens=RaggedTokens.of(random_ids(lengths, seed=number)))
        for number, lengths in enumerate([(4, 9, 12), (3, 9, 40)])
    ]
    opened = [broken.open(job) for job in jobs]
    broken.launch([JobSlice(job=job, start=0, stop=len(job.costs)) for job in opened]).collect()
    assert opened[0].result()
    with pytest.raises(Internal, match="not finite"):
        opened[1].result()


def test_a_query_that_is_no_numbers_fails_its_job(broken: ModelEngine) -> None:
    """Though the documents of later steps are."""
    job = Job(id=1, work=score(LATE, 1, pooling=TWICE), tokens=RaggedTokens.of(random_ids((9, 5, 6))))
    with pytest.raises(Internal, match="not finite"):
        run(broken, [job], 1)


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (encode(MULTI, input_type=InputType.QUERY, pooling=TWICE), InvalidInput),
        (pooled(TWICE, token_ids=True), InvalidInput),
        (score(LATE, 1, pooling=TWICE, explain=True), InvalidInput),
    ],
    ids=["a query", "token ids", "an explanation"],
)
def test_what_is_not_pooled_is_refused(
    engine: ModelEngine, documents: list[list[int]], work: Encode | Score, error: type[Exception]
) -> None:
    with pytest.raises(error) as raised:
        ask(engine, work, documents)
    assert raised.value.field == "pool_factor"  # type: ignore[attr-defined]


def test_dense_rows_are_not_pooled() -> None:
    engine = ModelEngine(load(random_model("tiny-bge-m3"), CPU))
    for work in (encode(DENSE, pooling=TWICE), score(ScoringMethod.DENSE, 1, pooling=TWICE)):
        with pytest.raises(InvalidInput, match="pooling needs"):
            ask(engine, work, [[30, 31], [32]])


def test_a_long_document_is_refused_and_a_long_query_is_not(
    engine: ModelEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_worker.engine.engine.MOST_POOLED", 9)
    texts = random_ids((12, 9), seed=1)
    assert ask(engine, score(LATE, 1, pooling=TWICE), texts).scores
    for work in (pooled(TWICE), score(LATE, 1, pooling=TWICE)):
        with pytest.raises(InputTooLong, match="a document has 12 tokens, the rows of 9 at most are pooled"):
            ask(engine, work, texts[::-1])


def test_pooling_costs_what_it_takes(engine: ModelEngine) -> None:
    """By the square of a document's length, in the unit that ends it; a query costs what it did."""
    texts = RaggedTokens.of(random_ids((100, 100, 200), seed=1))
    costs = [
        engine.open(Job(id=1, work=work, tokens=texts)).costs
        for work in (score(LATE, 1), score(LATE, 1, pooling=TWICE))
    ]
    query, *more = np.subtract(costs[1], costs[0]).tolist()
    assert query == 0
    assert more[1] / more[0] == pytest.approx(4, rel=0.01)
    with cut_texts(engine, longest=50):
        cut = engine.open(Job(id=1, work=pooled(TWICE), tokens=texts)).costs
    assert [cost == 50 for cost in cut] == [True, False, True, False, True, True, True, False]
