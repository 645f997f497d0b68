"""Jobs of every kind give in pieces what they give whole, in any order of steps and among any others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.kernels.cpu import library
from gpu_worker.model.heads.dense import DenseHead
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse import LexicalHead, SpladeHead
from gpu_worker.model.loading import Model, load
from gpu_worker.model.tune import same_bits
from gpu_worker.repository.recipe import POOLINGS
from shared.jobs import Classify, HybridWeights, Job, JobResult, MaxSim
from shared.ragged import RaggedTokens
from shared.vectors import DataType, Layout, MultiVectors, ScoringMethod
from support.in_pieces import run_in_steps
from support.parity import Tables
from support.tiny import DENSE, MULTI, SPARSE, encode, random_ids, raw, run, score

pytestmark = pytest.mark.usefixtures("one_thread")
LIBRARY = library.load()
LATE, PAIRS = ScoringMethod.LATE_INTERACTION, Layout.PAIRS
TEXTS = random_ids([1, 15, 16, 17, 33, 49, 5, 64, 130, 3])
QUERIES, DOCUMENTS = random_ids([3, 50, 17], seed=1), random_ids([40, 2, 129, 16, 31], seed=2)
LONG_DOCUMENTS = random_ids([40, 2, 385, 130, 65], seed=2)
LONG_TEXTS = random_ids([1, 63, 65, 127, 128, 129, 193, 257, 385, 3])
"""Texts of 1 to 3 pieces of 64 or 128 tokens and a token."""
MOST = 400
"""Most tokens of a text."""
CHUNKS = [16, pytest.param(64, marks=pytest.mark.slow), pytest.param(128, marks=pytest.mark.slow)]
TOLERANCE = 1e-4
"""Of scores and of rows as the heads give them; those of unit length are held to 1e-5."""
COSINE = 0.999
"""Least cosine of rows in bfloat16."""


def caller_rows(*lengths: int, width: int = 64) -> MultiVectors:
    """Rows of a caller's documents."""
    data = np.random.default_rng(3).standard_normal((sum(lengths), width), dtype=np.float32)
    return MultiVectors(data_type=DataType.FLOAT32, dimensions=width, lengths=lengths, data=data.tobytes())


def with_all_heads(model: Model, splade: bool, has_same_bits: bool) -> Model:
    """The model with random heads for what it lacks, and every pooling one after the other."""
    torch.manual_seed(5)
    width, dtype = model.encoder.width, model.placement.dtype
    sparse: SpladeHead | LexicalHead
    if splade:
        vocabulary = nn.Linear(width, model.vocabulary_size).to(dtype)
        sparse = SpladeHead(vocabulary, model.vocabulary_size, strategy="max", logs=1)  # type: ignore[arg-type]
    else:
        sparse = LexicalHead(nn.Sequential(nn.Linear(width, 1)).to(dtype))
    dense = DenseHead(POOLINGS, nn.Sequential(), width * len(POOLINGS))
    heads = Heads(dense=dense, multi_vector=model.heads.multi_vector, sparse=sparse)
    if has_same_bits:
        same_bits.install(heads.modules())
    return replace(model, heads=heads)


@cache
def vector_engine(name: str, dtype: str, splade: bool, has_same_bits: bool = False) -> ModelEngine:
    placement = Placement.choose("cpu", dtype)  # type: ignore[arg-type]
    return ModelEngine(
        with_all_heads(
            load(f"random:{name}", placement, max_tokens=MOST, same_bits=has_same_bits), splade, has_same_bits
        )
    )


@contextmanager
def cut_texts(engine: ModelEngine, chunk: int) -> Iterator[None]:
    """The engine cuts texts so for a while."""
    assert not engine.model.cutting.refusal
    engine.cut_texts(PieceLimits(longest=chunk))
    try:
        yield
    finally:
        engine.cut_texts(PieceLimits())


def texts_for(chunk: int) -> list[list[int]]:
    """Texts of fewer tokens than a piece of so many has, and of up to three pieces and a token."""
    return TEXTS if chunk < 64 else LONG_TEXTS


def vector_jobs(chunk: int = 16) -> list[Job]:
    """Encodes, scores and comparisons of every kind."""
    sequences, documents = texts_for(chunk), DOCUMENTS if chunk < 64 else LONG_DOCUMENTS
    texts, compared = RaggedTokens.of(sequences), RaggedTokens.of([*QUERIES, *documents])
    pairs = RaggedTokens.of([*documents, *reversed(documents)])
    explained = RaggedTokens.of([QUERIES[1], *documents])
    prompts = tuple(min(4, len(text) - 1) for text in sequences)
    queries = RaggedTokens.of(QUERIES)
    everything = [
        (encode(DENSE), texts),
        (raw(DENSE, MULTI, SPARSE), texts),
        (encode(MULTI, token_ids=True), texts),
        (encode(SPARSE, sparse_top_k=7), texts),
        (encode(MULTI, dimensions=32), texts),
        *((score(method, len(QUERIES)), compared) for method in (ScoringMethod.DENSE, ScoringMethod.SPARSE, LATE)),
        *(
            (score(method, len(documents), PAIRS), pairs)
            for method in (ScoringMethod.DENSE, ScoringMethod.SPARSE, LATE)
        ),
        (score(LATE, 1, explain=True), explained),
        (score(LATE, len(QUERIES), mean=True), compared),
        (score(ScoringMethod.HYBRID, len(QUERIES), weights=HybridWeights(dense=1, sparse=2, multi_vector=3)), compared),
        (score(ScoringMethod.HYBRID, len(documents), PAIRS, weights=HybridWeights()), pairs),
        *(
            (
                MaxSim(
                    queries=None,
                    documents=caller_rows(*rows),
                    layout=layout,
                    unit_rows=True,
                    mean=mean,
                    explain=explain,
                ),
                queries if layout is PAIRS or not explain else RaggedTokens.of(QUERIES[1:2]),
            )
            for layout, rows, mean, explain in (
                (Layout.MATRIX, (4, 1, 30, 7), False, False),
                (PAIRS, (4, 1, 30), True, False),
                (Layout.MATRIX, (4, 1, 30, 7), False, True),
            )
        ),
    ]
    jobs = [Job(id=number, work=work, tokens=tokens) for number, (work, tokens) in enumerate(everything)]
    prompted = Job(id=100, work=raw(DENSE), tokens=texts, prompt_lengths=prompts)
    return [*jobs, prompted]


def numbers_of(result: JobResult) -> dict[str, np.ndarray]:
    """Everything that a result has, as rows by name."""
    arrays = {}
    for name, rows in (("dense", result.dense), ("tokens", result.tokens)):
        if rows is not None:
            arrays[name] = np.frombuffer(rows.data, dtype="<f4").reshape(-1, rows.dimensions)
    if result.sparse is not None:
        arrays["sparse"] = np.frombuffer(result.sparse.values, dtype="<f4")[None]
    arrays["scores"] = np.frombuffer(result.scores, dtype="<f4")[None]
    arrays["similarities"] = np.frombuffer(result.similarities, dtype="<f4")[None]
    return arrays


def assert_alike(found: Sequence[JobResult], expected: Sequence[JobResult], dtype: str) -> None:
    """float32: each number within 1e-4 of it, in rows of unit length within 1e-5; bfloat16: rows by their cosine."""
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.row_lengths, ours.token_ids) == (theirs.row_lengths, theirs.token_ids)
        if dtype == "float32" and theirs.sparse is not None and ours.sparse is not None:
            assert (ours.sparse.lengths, ours.sparse.indices) == (theirs.sparse.lengths, theirs.sparse.indices)
        for name, rows in numbers_of(theirs).items():
            mine = numbers_of(ours)[name]
            assert np.isfinite(mine).all()
            if dtype == "float32":
                unit = name in ("dense", "tokens") and np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-3)
                assert np.abs(mine - rows).max(initial=0) <= (
                    1e-5 if unit else TOLERANCE * max(1, np.abs(rows).max(initial=0))
                )
            elif name in ("dense", "tokens", "scores") and rows.size:
                norms = np.linalg.norm(mine, axis=1) * np.linalg.norm(rows, axis=1)
                assert ((mine * rows).sum(axis=1) >= COSINE * norms - 1e-6).all()
        assert len(ours.winners) == len(theirs.winners)
        if dtype == "float32" and theirs.winners:  # near ties may fall otherwise
            same = np.frombuffer(ours.winners, dtype="<i4") == np.frombuffer(theirs.winners, dtype="<i4")
            assert same.mean() >= 0.98


def assert_same_bits(found: Sequence[JobResult], expected: Sequence[JobResult]) -> None:
    """Results are equal, their times apart."""
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("row_lengths", "token_ids", "winners"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert (ours.sparse is None) == (theirs.sparse is None)
        if ours.sparse is not None and theirs.sparse is not None:
            assert (ours.sparse.lengths, ours.sparse.indices) == (theirs.sparse.lengths, theirs.sparse.indices)
        for name, rows in numbers_of(theirs).items():
            assert np.array_equal(numbers_of(ours)[name].view(np.int32), rows.view(np.int32)), name


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "splade"),
    [
        ("tiny-qwen3", True),
        pytest.param("tiny-qwen3", False, marks=pytest.mark.slow),
        ("tiny-mistral", False),
        pytest.param("tiny-gemma2", True, marks=pytest.mark.slow),
        pytest.param("tiny-gemma3", True, marks=pytest.mark.slow),
        pytest.param("tiny-llama", False, marks=pytest.mark.slow),
    ],
)
def test_vectors_and_scores_in_pieces(name: str, splade: bool, dtype: str, chunk: int) -> None:
    """Every pooling, token rows, both kinds of sparse weights; all methods of scoring, as matrices and as pairs."""
    engine, jobs = vector_engine(name, dtype, splade), vector_jobs(chunk)
    expected = run(engine, jobs)
    with cut_texts(engine, chunk):
        assert any(engine.open(job).room for job in jobs)
        for seed in range(2):
            assert_alike(run_in_steps(engine, jobs, seed), expected, dtype)


CLASSIFYING = [
    ("labels", Classify()),
    ("token labels", Classify(tokens=True)),
    ("token labels", Classify(tokens=True, token_id=TEXTS[8][100])),
    ("yes-no", Classify()),
]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("output", "work"), CLASSIFYING, ids=["texts", "tokens", "one token id", "yes or no"])
def test_logits_in_pieces(tables: Tables, output: str, work: Classify, dtype: str, chunk: int) -> None:
    """Of texts, of all tokens, of the tokens with one id, and of rerankers that answer yes or no."""
    engine = tables.engine("tiny-qwen3", output, dtype)
    texts = texts_for(chunk)
    jobs = [
        Job(id=1, work=work, tokens=RaggedTokens.of(texts)),
        Job(id=2, work=work, tokens=RaggedTokens.of(texts[7:])),
    ]
    expected = run(engine, jobs)
    with cut_texts(engine, chunk):
        for seed in range(2):
            assert_alike(run_in_steps(engine, jobs, seed), expected, dtype)


@pytest.mark.skipif(bool(LIBRARY.missing), reason=f"the processor's kernels: {LIBRARY.missing}")
@pytest.mark.parametrize(
    "chunk", [7, 16, pytest.param(1, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("dtype", sorted(str(dtype)[6:] for dtype in LIBRARY.formats))
@pytest.mark.parametrize(
    "name", ["tiny-qwen3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tiny-gemma2", "tiny-mistral"))]
)
def test_same_bits_in_pieces_of_any_size(name: str, dtype: str, chunk: int) -> None:
    """What `--same-bits` promises does not depend on how texts are cut."""
    engine, jobs = vector_engine(name, dtype, splade=False, has_same_bits=True), vector_jobs()
    expected = run(engine, jobs)
    with cut_texts(engine, chunk):
        assert_same_bits(run_in_steps(engine, jobs, chunk), expected)


@pytest.mark.skipif(bool(LIBRARY.missing), reason=f"the processor's kernels: {LIBRARY.missing}")
@pytest.mark.parametrize("chunk", [7, 16])
def test_a_reranker_has_the_same_bits_in_pieces(chunk: int) -> None:
    """One that answers yes or no."""
    engine = ModelEngine(
        load("random:tiny-yes-no", Placement.choose("cpu", "float32"), max_tokens=MOST, same_bits=True)
    )
    jobs = [Job(id=1, work=Classify(), tokens=RaggedTokens.of(TEXTS))]
    expected = run(engine, jobs)
    with cut_texts(engine, chunk):
        assert_same_bits(run_in_steps(engine, jobs), expected)
