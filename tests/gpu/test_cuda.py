"""The same engine on CUDA: attention, families, jobs and waits against the CPU's float32."""

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
from gpu_worker.model.loading import load
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.startup.trials import warm_up_jobs
from harness.random_models import miniature, synthetic
from shared.jobs import Encode, Job, JobResult, MaxSim, RaggedTokens, Score
from shared.vectors import Layout, ScoringMethod
from support.every_kind import caller_rows
from support.in_pieces import cut_texts, run_in_steps
from support.random_models import random_model
from support.tiny import DENSE, MULTI, encode, run, score, tokens

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"
LENGTHS = [1, 7, 64, 65, 300, 12]
TINY = sorted(name for name in synthetic.SHAPES if name.startswith("tiny-"))
IN_PIECES = {"tiny-qwen3", "tiny-mistral", "tiny-gemma3"}
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
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32) for length in LENGTHS], cuda, tails=tails)
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", TINY)
def test_every_family_passes_its_gate(name: str, dtype: str) -> None:
    """The load compares the packed run with the model's own eager attention on the device, and raises; it compares
    texts in pieces with the model's own run of the whole ones too, some of them with windows."""
    model = load(random_model(name), Placement.choose(DEVICE, dtype))  # type: ignore[arg-type]
    assert not model.encoder.unpacked_reason
    assert not (dtype == "bfloat16" and name in IN_PIECES and model.whole_texts)


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5_text", "bamba"])
def test_layers_with_states_give_what_the_processor_gives(kind: str, tmp_path: Path) -> None:
    """In steps of whole texts, and of pieces, in float32."""
    miniature.write(tmp_path, kind)
    work = [Job(id=number, work=encode(DENSE), tokens=tokens(3, 200, 1, 90 + number)) for number in range(3)]
    engines = [ModelEngine(load(str(tmp_path), Placement.choose(device, "float32"))) for device in ("cpu", DEVICE)]
    expected, whole = (run(engine, work) for engine in engines)
    assert not engines[1].model.encoder.unpacked_reason
    with cut_texts(engines[1], longest=48):
        pieces = run_in_steps(engines[1], work)
    for right, *found in zip(arrays(expected), arrays(whole), arrays(pieces), strict=True):
        for rows in found:
            np.testing.assert_allclose(rows, right, atol=2e-4, rtol=1e-3)


def jobs() -> list[Job]:
    late, rows = ScoringMethod.LATE_INTERACTION, caller_rows(2, 0, 5, width=8)
    compared = MaxSim(queries=None, documents=rows, layout=Layout.MATRIX, unit_rows=True, mean=True)
    everything: list[tuple[Encode | Score | MaxSim, RaggedTokens, tuple[int, ...]]] = [
        (encode(DENSE, MULTI), tokens(3, 200, 1), ()),
        (encode(DENSE, MULTI, dimensions=16), tokens(40, 7), ()),
        (score(late, 2, mean=True), tokens(5, 9, 30, 2, 77), ()),
        (score(ScoringMethod.DENSE, 2, Layout.PAIRS), tokens(5, 9, 30, 2), ()),
        (replace(compared, queries=caller_rows(3, 1, width=8)), RaggedTokens.of([]), ()),
        (compared, tokens(32, 32), (20, 3)),
        (score(late, 1, mean=True, explain=True), tokens(5, 30, 2, 77), ()),
        (encode(DENSE, MULTI), tokens(32, 40, 9), (20, 0, 8)),
    ]
    return [
        Job(id=number, work=work, tokens=texts, unattended_tails=tails)
        for number, (work, texts, tails) in enumerate(everything)
    ]


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
        arrays(run(ModelEngine(load(random_model(name), placement)), jobs()))
        for placement in (Placement.choose("cpu", "float32"), Placement.choose(DEVICE, dtype))  # type: ignore[arg-type]
    )
    for ours, theirs in zip(device, exact, strict=True):
        cosines = (ours * theirs).sum(axis=1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
        assert cosines.min() > least


@pytest.mark.parametrize("name", ["tiny-bert", *HEADED])
def test_every_head_equals_the_cpus(name: str) -> None:
    """One job of every kind that the model can do, in float32."""
    exact, device = (
        numbers(run(engine, warm_up_jobs(engine.model)))
        for placement in (Placement.choose("cpu", "float32"), Placement.choose(DEVICE, "float32"))
        for engine in [ModelEngine(load(random_model(name), placement))]
    )
    for ours, theirs in zip(device, exact, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max(initial=0) <= 1e-3 * np.abs(theirs).max(initial=1)


@pytest.mark.parametrize("name", ["tiny-bert", *HEADED])
def test_a_step_waits_for_its_results_only(cuda: torch.device, name: str) -> None:
    """Nothing else in it synchronises: CUDA's own debug mode raises where something does."""
    engine = ModelEngine(load(random_model(name), Placement.choose(DEVICE, "bfloat16")))
    run(engine, warm_up_jobs(engine.model))
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = run(engine, warm_up_jobs(engine.model))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(np.isfinite(array).all() for array in numbers(results))


def numbers(results: list[JobResult]) -> Iterator[np.ndarray]:
    """All float32 numbers of results; sparse vectors by their sums, since tiny weights may be there or not."""
    for result in results:
        for data in (result.scores, *(rows.data for rows in (result.dense, result.tokens) if rows)):
            yield np.frombuffer(data, dtype="<f4")
        if result.sparse is not None:
            values = np.frombuffer(result.sparse.values, dtype="<f4")
            yield np.array([weights.sum() for weights in np.split(values, np.cumsum(result.sparse.lengths)[:-1])])
