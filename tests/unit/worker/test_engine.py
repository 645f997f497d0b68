"""The engine on a tiny model: jobs mixed in one step, spread over steps, and refused."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from gpu_worker.device import transfer
from gpu_worker.device.placement import Placement
from gpu_worker.device.transfer import StepDownload
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.loading import load
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.schedule.interface import JobSlice, OutOfMemory
from shared.errors import InputTooLong, Internal, InvalidInput, UnsupportedDimensions, UnsupportedTask
from shared.jobs import Classify, Encode, Job, MaxSim, RaggedTokens, Score
from shared.vectors import DataType, Layout, MultiVectors, ScoringMethod
from support.random_models import random_model
from support.tiny import (
    CPU,
    DENSE,
    MULTI,
    SPARSE,
    ask,
    assert_same,
    dense_rows,
    encode,
    random_ids,
    raw,
    run,
    score,
    token_rows,
    tokens,
)


@pytest.fixture(scope="module")
def engine() -> ModelEngine:
    return ModelEngine(load(random_model("tiny-bert"), Placement.choose("cpu", "float32")))


def given(*lengths: int, seed: int) -> MultiVectors:
    rows = np.random.default_rng(seed).standard_normal((sum(lengths), 8)).astype("<f4")
    return MultiVectors(data_type=DataType.FLOAT32, dimensions=8, lengths=lengths, data=rows.tobytes())


JOBS = [
    Job(id=1, work=encode(DENSE), tokens=tokens(3, 50, 1, seed=1)),
    Job(id=2, work=encode(DENSE, MULTI, dimensions=16), tokens=tokens(7, 7, seed=2)),
    Job(id=3, work=encode(MULTI, data_type=DataType.INT8), tokens=tokens(9, 2, seed=3)),
    Job(id=4, work=score(ScoringMethod.LATE_INTERACTION, 2), tokens=tokens(5, 3, 20, 1, 8, seed=4)),
    Job(id=5, work=score(ScoringMethod.DENSE, 1, mean=True), tokens=tokens(4, 6, 30, seed=5)),
    Job(id=6, work=score(ScoringMethod.LATE_INTERACTION, 2, Layout.PAIRS), tokens=tokens(4, 6, 9, 2, seed=6)),
    Job(id=7, work=encode(DENSE), tokens=tokens(12, 12, seed=7), prompt_lengths=(4, 4)),
    Job(
        id=8,
        work=MaxSim(
            queries=given(3, 1, seed=8),
            documents=given(2, 0, 5, seed=9),
            layout=Layout.MATRIX,
            unit_rows=True,
            mean=True,
        ),
    ),
]


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("tiny-classifier", Classify()),
        ("tiny-token-classifier", Classify(tokens=True)),
        ("tiny-yes-no", Classify()),
        ("tiny-splade", encode(SPARSE)),
        ("tiny-splade", encode(SPARSE, sparse_top_k=3)),
        ("tiny-splade", score(ScoringMethod.SPARSE, 1)),
        ("tiny-bge-m3", encode(SPARSE)),
        ("tiny-bge-m3", encode(MULTI)),
        ("tiny-bge-m3", encode(MULTI, data_type=DataType.BINARY)),
    ],
)
def test_nan_of_a_head_is_told(name: str, work: Encode | Score | Classify) -> None:
    """Hidden states are sound, what the head makes of them is not."""
    model = load(random_model(name), CPU)
    for module in model.heads.modules():
        for each in (*module.parameters(), *module.buffers()):
            if each.is_floating_point():
                each.data.fill_(float("nan"))
    with pytest.raises(Internal):
        ask(ModelEngine(model), work, random_ids([5, 9, 2]))


def test_a_text_without_rows_has_none_in_any_type() -> None:
    """BGE-M3 has no vector for the first token."""
    engine = ModelEngine(load(random_model("tiny-bge-m3"), CPU))
    for data_type in DataType:
        result = ask(engine, encode(MULTI, data_type=data_type), [[5]])
        assert result.row_lengths == (0,)
        assert result.tokens is not None
        assert result.tokens.data == b""


@pytest.mark.parametrize(("large", "copies"), [(1 << 20, 1), (12, 2), (3, 4)], ids=["joined", "mixed", "apart"])
def test_what_is_shipped_comes_out_as_it_was(large: int, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies that a device makes: every type, each from a multiple of 64 bytes on, as views of one buffer."""
    monkeypatch.setattr(transfer, "LARGE", large)
    download = StepDownload()
    tensors = [torch.arange(6.0).view(2, 3), torch.tensor([7, -1], dtype=torch.int32)]
    tensors += [torch.tensor([1, 2, 255], dtype=torch.uint8), torch.tensor([True, False]), torch.empty(0, 4)]
    for tensor in tensors:
        download.add_tensor(tensor)
    pieces = list(download._pieces())
    assert len(pieces) == copies
    flat = np.empty(max(start + len(piece) for start, piece in pieces), dtype=np.uint8)
    for start, piece in pieces:
        flat[start : start + len(piece)] = piece
    for array, tensor in zip(download._cut(flat), tensors, strict=True):
        assert np.array_equal(array, tensor.numpy())
        assert array.dtype == tensor.numpy().dtype
        assert not array.size or np.shares_memory(array, flat)
        assert not array.size or (array.ctypes.data - flat.ctypes.data) % 64 == 0


@pytest.mark.parametrize("width", [None, 1, 2, 3])
def test_mixed_jobs_equal_the_same_jobs_alone(engine: ModelEngine, width: int | None) -> None:
    """Whatever travels in a step, and however a job is cut into steps."""
    alone = [run(engine, [job])[0] for job in JOBS]
    for job, ours, theirs in zip(JOBS, run(engine, JOBS, width), alone, strict=True):
        data_type = job.work.data_type if isinstance(job.work, Encode) else DataType.FLOAT32
        assert_same(ours, theirs, data_type)


def test_pairs_are_the_diagonal_of_the_matrix(engine: ModelEngine) -> None:
    for method in (ScoringMethod.LATE_INTERACTION, ScoringMethod.DENSE):
        texts = tokens(4, 9, 2, 30, 1, 17, seed=11)
        layouts = (Layout.MATRIX, Layout.PAIRS)
        jobs = [Job(id=1, work=score(method, 3, layout), tokens=texts) for layout in layouts]
        matrix, pairs = (np.frombuffer(result.scores, dtype="<f4") for result in run(engine, jobs))
        assert np.allclose(np.diag(matrix.reshape(3, 3)), pairs, atol=1e-5)


def test_a_prompt_can_be_left_out_of_the_mean(engine: ModelEngine) -> None:
    """Pooled rows with skipped tokens equal the mean of the others."""
    job = Job(id=1, work=raw(DENSE, MULTI), tokens=tokens(6, seed=12), prompt_lengths=(2,))
    result = run(engine, [job])[0]
    assert np.allclose(dense_rows(result)[0], token_rows(result)[0][2:].mean(axis=0), atol=1e-5)


class FakeEncoder:
    """The real encoder, with what a test wants to happen to its hidden states."""

    uncounted, token_types = None, None

    def __init__(self, encoder: Encoder, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._encoder, self._change = encoder, change

    def __call__(self, batch: RaggedBatch) -> torch.Tensor:
        return self._change(self._encoder(batch))


def broken(engine: ModelEngine, change: Callable[[torch.Tensor], torch.Tensor]) -> ModelEngine:
    model = engine.model
    return ModelEngine(replace(model, encoder=FakeEncoder(model.encoder, change)))


def test_nan_fails_its_own_job(engine: ModelEngine) -> None:
    """INTERNAL for the job whose rows are no numbers; the other one in the step is answered."""

    def spoil(hidden: torch.Tensor) -> torch.Tensor:
        hidden[-1, 3] = float("nan")  # the longest sequence comes last
        return hidden

    spoiled = broken(engine, spoil)
    good, bad = (spoiled.open(Job(id=each, work=encode(DENSE), tokens=tokens(each, seed=each))) for each in (3, 40))
    spoiled.launch([JobSlice(job=each, start=0, stop=1) for each in (bad, good)]).collect()
    assert good.result().dense is not None
    with pytest.raises(Internal):
        bad.result()


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("full"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_device_without_room_says_so(engine: ModelEngine, error: Exception) -> None:
    def full(_: torch.Tensor) -> torch.Tensor:
        raise error

    crowded = broken(engine, full)
    progress = crowded.open(Job(id=1, work=encode(DENSE), tokens=tokens(3)))
    with pytest.raises(OutOfMemory):
        crowded.launch([JobSlice(job=progress, start=0, stop=1)]).collect()


@pytest.mark.parametrize(
    ("job", "error"),
    [
        (Job(id=1, work=encode(DENSE)), InvalidInput),
        (Job(id=1, work=encode(), tokens=tokens(1)), UnsupportedTask),
        (Job(id=1, work=encode(SPARSE), tokens=tokens(1)), UnsupportedTask),
        (Job(id=1, work=encode(DENSE, dimensions=65), tokens=tokens(1)), UnsupportedDimensions),
        (Job(id=1, work=encode(DENSE), tokens=tokens(641)), InputTooLong),
        (Job(id=1, work=encode(DENSE), tokens=RaggedTokens.of([[1000]])), InvalidInput),
        (Job(id=1, work=encode(DENSE), tokens=RaggedTokens.of([[-1]])), InvalidInput),
        (Job(id=1, work=score(ScoringMethod.SPARSE, 1), tokens=tokens(1, 1)), UnsupportedTask),
        (Job(id=1, work=score(ScoringMethod.HYBRID, 1), tokens=tokens(1, 1)), UnsupportedTask),
        (Job(id=1, work=score(ScoringMethod.CROSS_ENCODER, 1), tokens=tokens(1, 1)), UnsupportedTask),
        (Job(id=1, work=Classify(), tokens=tokens(1)), UnsupportedTask),
        (Job(id=1, work=Classify(tokens=True), tokens=tokens(1)), UnsupportedTask),
        (Job(id=1, work=encode(DENSE, sparse_top_k=-1), tokens=tokens(1)), InvalidInput),
        (Job(id=1, work=score(ScoringMethod.DENSE, 2), tokens=tokens(1, 1)), InvalidInput),
        (Job(id=1, work=score(ScoringMethod.DENSE, 1, Layout.PAIRS), tokens=tokens(1, 1, 1)), InvalidInput),
    ],
)
def test_the_worker_guards_itself(engine: ModelEngine, job: Job, error: type[Exception]) -> None:
    """Frontends check the same; a worker does not rely on it."""
    with pytest.raises(error):
        engine.open(job)
