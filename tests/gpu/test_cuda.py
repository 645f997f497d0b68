"""The same engine on CUDA: attention, families, jobs and waits against the CPU's float32."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.schedule.interface import JobSlice
from gpu_worker.startup.trials import warm_up_jobs
from harness.random_models import synthetic
from shared.jobs import Encode, Job, JobResult, MaxSim, RaggedTokens, Score
from shared.vectors import DataType, Layout, MultiVectors, OutputKind, ScoringMethod
from support.random_models import random_model
from support.tiny import write_encoder

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"
LENGTHS = [1, 7, 64, 65, 300, 12]
TAILS = {"unattended_tails": (20, 0, 8)}
TINY = sorted(name for name in synthetic.SHAPES if name.startswith("tiny-"))
HEADED = [name for name in synthetic.HEADED if name.startswith("tiny-")]
"""Not those that differ from a tiny one in their size alone: the processor would take long over them."""


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(
    "terms",
    [
        AttentionTerms(scale=0.125),
        AttentionTerms(scale=0.125, causal=True),
        AttentionTerms(scale=0.125, causal=True, window=16),
        AttentionTerms(scale=0.125, window=16),
    ],
    ids=["full", "causal", "causal window", "window"],
)
@pytest.mark.parametrize("tails", [(), (0, 3, 40, 0, 10, 11)], ids=["whole", "tails"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_varlen_equals_one_by_one(
    cuda: torch.device, dtype: torch.dtype, terms: AttentionTerms, groups: int, tails: tuple[int, ...]
) -> None:
    """On the same rounded inputs, within the rounding of the output; with and without tails that nobody attends to."""
    batch = RaggedBatch.pack([np.zeros(each, dtype=np.int32) for each in LENGTHS], cuda, tails=tails)
    torch.manual_seed(0)
    query = torch.randn(batch.total, 8, 64, device=cuda, dtype=dtype).transpose(0, 1)
    key, value = (torch.randn(batch.total, 8 // groups, 64, device=cuda, dtype=dtype).transpose(0, 1) for _ in "kv")
    expected = OneByOne()(query.float(), key.float(), value.float(), batch, terms)
    defined = torch.isfinite(expected)  # far behind a window nothing is attended to
    error = (Varlen()(query, key, value, batch, terms).float() - expected)[defined].abs().max()
    assert error < (2e-2 if dtype is torch.bfloat16 else 3e-3)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("window", [None, 16, 100])
def test_varlen_takes_pieces_of_a_text(cuda: torch.device, window: int | None, groups: int) -> None:
    """With all keys before it, of which a window hides the first."""
    terms = AttentionTerms(scale=0.125, causal=True, window=window)
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(300, heads, 64, device=cuda, dtype=torch.bfloat16).transpose(0, 1)
        for heads in (8, 8 // groups, 8 // groups)
    )
    batch = RaggedBatch.pack([np.zeros(300, dtype=np.int32)], cuda)
    expected = OneByOne()(query.float(), key.float(), value.float(), batch, terms)
    for start, stop in ((64, 65), (65, 192), (192, 300)):
        piece = slice(start, stop)
        rows = Varlen().attend_piece(query[:, piece], key[:, :stop], value[:, :stop], terms)
        assert (rows.float() - expected[piece]).abs().max() < 2e-2


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-mistral", "tiny-gemma3"])
def test_causal_families_run_in_pieces(name: str) -> None:
    """The load compares texts in pieces with the model's own run of the whole ones; two of these have windows."""
    assert not load(random_model(name), Placement.choose(DEVICE, "bfloat16")).whole_texts


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", TINY)
def test_every_family_passes_its_gate(name: str, dtype: str) -> None:
    """The load compares the packed run with the model's own eager attention on the device, and raises."""
    assert not load(random_model(name), Placement.choose(DEVICE, dtype)).encoder.unpacked_reason  # type: ignore[arg-type]


def tokens(*lengths: int) -> RaggedTokens:
    generator = np.random.default_rng(sum(lengths))
    return RaggedTokens.of([generator.integers(5, 900, length).tolist() for length in lengths])


def given(*lengths: int) -> MultiVectors:
    rows = np.random.default_rng(len(lengths)).standard_normal((sum(lengths), 8)).astype("<f4")
    return MultiVectors(data_type=DataType.FLOAT32, dimensions=8, lengths=lengths, data=rows.tobytes())


def jobs() -> list[Job]:
    both = frozenset({OutputKind.DENSE, OutputKind.MULTI_VECTOR})
    late = Score(method=ScoringMethod.LATE_INTERACTION, layout=Layout.MATRIX, queries=2, unit_rows=True, mean=True)
    pairs = Score(method=ScoringMethod.DENSE, layout=Layout.PAIRS, queries=2, unit_rows=True, mean=False)
    return [
        Job(id=1, work=Encode(outputs=both, normalize=True, normalize_tokens=True), tokens=tokens(3, 200, 1)),
        Job(
            id=2,
            work=Encode(outputs=both, dimensions=16, normalize=True, normalize_tokens=True),
            tokens=tokens(40, 7),
        ),
        Job(id=3, work=late, tokens=tokens(5, 9, 30, 2, 77)),
        Job(id=4, work=pairs, tokens=tokens(5, 9, 30, 2)),
        Job(
            id=5,
            work=MaxSim(queries=given(3, 1), documents=given(2, 0, 5), layout=Layout.MATRIX, unit_rows=True, mean=True),
        ),
        Job(
            id=6,
            work=MaxSim(queries=None, documents=given(2, 0, 5), layout=Layout.MATRIX, unit_rows=True, mean=True),
            tokens=tokens(32, 32),
            unattended_tails=(20, 3),
        ),
        Job(id=7, work=replace(late, queries=1, explain=True), tokens=tokens(5, 30, 2, 77)),
        Job(id=8, work=Encode(outputs=both, normalize=True, normalize_tokens=True), tokens=tokens(32, 40, 9), **TAILS),
    ]


def run(engine: ModelEngine) -> list[JobResult]:
    progresses = [engine.open(job) for job in jobs()]
    engine.launch([JobSlice(job=each, start=0, stop=len(each.costs)) for each in progresses]).collect()
    return [each.result() for each in progresses]


def arrays(results: list[JobResult]) -> Iterator[np.ndarray]:
    for result in results:
        for rows in (result.dense, result.tokens):
            if rows is not None:
                yield np.frombuffer(rows.data, dtype="<f4").reshape(-1, rows.dimensions)
        if result.scores:
            yield np.frombuffer(result.scores, dtype="<f4")[None]


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-qwen3"])
@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.999_999), ("bfloat16", 0.99)])
def test_mixed_jobs_equal_the_cpus_float32(name: str, dtype: str, least: float) -> None:
    """Dense, token rows, scores and given vectors of one step: the cosine of every row."""
    exact, device = (
        arrays(run(ModelEngine(load(random_model(name), placement))))
        for placement in (Placement.choose("cpu", "float32"), Placement.choose(DEVICE, dtype))  # type: ignore[arg-type]
    )
    for ours, theirs in zip(device, exact, strict=True):
        cosines = (ours * theirs).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
        assert cosines.min() > least


@pytest.mark.parametrize("name", ["tiny-bert", *HEADED])
def test_every_head_equals_the_cpus(name: str) -> None:
    """One job of every kind that the model can do, in float32."""
    exact, device = (
        numbers(rehearse(ModelEngine(load(random_model(name), placement))))
        for placement in (Placement.choose("cpu", "float32"), Placement.choose(DEVICE, "float32"))
    )
    for ours, theirs in zip(device, exact, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max(initial=0) <= 1e-3 * np.abs(theirs).max(initial=1)


@pytest.mark.parametrize("name", ["tiny-bert", *HEADED])
def test_a_step_waits_for_its_results_only(cuda: torch.device, name: str) -> None:
    """Nothing else in it synchronises: CUDA's own debug mode raises where something does."""
    engine = ModelEngine(load(random_model(name), Placement.choose(DEVICE, "bfloat16")))
    rehearse(engine)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = rehearse(engine)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(np.isfinite(each).all() for each in numbers(results))


def rehearse(engine: ModelEngine) -> list[JobResult]:
    """The results of one job of every kind, all in one step."""
    progresses = [engine.open(job) for job in warm_up_jobs(engine.model)]
    engine.launch([JobSlice(job=each, start=0, stop=len(each.costs)) for each in progresses]).collect()
    return [each.result() for each in progresses]


def numbers(results: list[JobResult]) -> Iterator[np.ndarray]:
    """All float32 numbers of results; sparse vectors by their sums, since tiny weights may be there or not."""
    for result in results:
        for data in (result.scores, *(each.data for each in (result.dense, result.tokens) if each)):
            yield np.frombuffer(data, dtype="<f4")
        if result.sparse is not None:
            values = np.frombuffer(result.sparse.values, dtype="<f4")
            yield np.array([each.sum() for each in np.split(values, np.cumsum(result.sparse.lengths)[:-1])])


@pytest.mark.parametrize(("dtype", "expected"), [("auto", torch.float16), ("bfloat16", torch.bfloat16)])
def test_files_may_ask_for_float16(dtype: str, expected: torch.dtype, tmp_path: Path) -> None:
    """A model whose config.json names it runs in it, and passes its gate there."""
    write_encoder(tmp_path, "tiny-bert")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": "float16"}))
    model = load(str(tmp_path), Placement.choose(DEVICE, dtype))  # type: ignore[arg-type]
    assert model.encoder.dtype == expected
    assert card_of(model).dtype == str(expected).removeprefix("torch.")
