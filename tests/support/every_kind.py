"""Jobs of every kind, and whether they give the same by two ways."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.cpu import library
from gpu_worker.model.heads.heads import DenseHead, Heads, LexicalHead, SpladeHead
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions
from gpu_worker.model.tune.linear import install_native
from gpu_worker.repository.recipe import POOLINGS
from shared.jobs import HybridWeights, Job, JobResult, MaxSim, RaggedTokens
from shared.vectors import DataType, Layout, MultiVectors, ScoringMethod
from support.random_models import random_model
from support.tiny import DENSE, MULTI, SPARSE, encode, raw, score

LATE, PAIRS = ScoringMethod.LATE_INTERACTION, Layout.PAIRS
MOST = 400
"""Most tokens of a text."""
TOLERANCE = 1e-4
"""Of scores and of rows as the heads give them; those of unit length are held to 1e-5."""
COSINE = 0.999
"""Least cosine of rows in bfloat16."""


def caller_rows(*lengths: int, width: int) -> MultiVectors:
    """Rows of a caller's documents."""
    data = np.random.default_rng(3).standard_normal((sum(lengths), width), dtype=np.float32)
    return MultiVectors(data_type=DataType.FLOAT32, dimensions=width, lengths=lengths, data=data.tobytes())


def with_all_heads(model: Model, splade: bool) -> Model:
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
    if not model.other_bits:
        install_native(heads.modules(), library.load())
    return replace(model, heads=heads)


@cache
def vector_engine(name: str, dtype: str, splade: bool) -> ModelEngine:
    placement = Placement.choose("cpu", dtype)  # type: ignore[arg-type]
    return ModelEngine(with_all_heads(load(random_model(name), placement, LoadOptions(max_tokens=MOST)), splade))


def vector_jobs(
    sequences: list[list[int]], queried: list[list[int]], documents: list[list[int]], width: int = 64
) -> list[Job]:
    """Encodes, scores and comparisons of every kind. `queried`: three queries; `width`: numbers of a token row."""
    texts, compared = RaggedTokens.of(sequences), RaggedTokens.of([*queried, *documents])
    pairs = RaggedTokens.of([*documents, *reversed(documents)])
    explained = RaggedTokens.of([queried[1], *documents])
    prompts = tuple(min(4, len(text) - 1) for text in sequences)
    queries = RaggedTokens.of(queried)
    everything = [
        (encode(DENSE), texts),
        (raw(DENSE, MULTI, SPARSE), texts),
        (encode(MULTI, token_ids=True), texts),
        (encode(SPARSE, sparse_top_k=7), texts),
        (encode(MULTI, dimensions=width // 2), texts),
        *((score(method, len(queried)), compared) for method in (ScoringMethod.DENSE, ScoringMethod.SPARSE, LATE)),
        *(
            (score(method, len(documents), PAIRS), pairs)
            for method in (ScoringMethod.DENSE, ScoringMethod.SPARSE, LATE)
        ),
        (score(LATE, 1, explain=True), explained),
        (score(LATE, len(queried), mean=True), compared),
        (score(ScoringMethod.HYBRID, len(queried), weights=HybridWeights(dense=1, sparse=2, multi_vector=3)), compared),
        (score(ScoringMethod.HYBRID, len(documents), PAIRS, weights=HybridWeights()), pairs),
        *(
            (
                MaxSim(
                    queries=None,
                    documents=caller_rows(*rows, width=width),
                    layout=layout,
                    unit_rows=True,
                    mean=mean,
                    explain=explain,
                ),
                queries if layout is PAIRS or not explain else RaggedTokens.of(queried[1:2]),
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
