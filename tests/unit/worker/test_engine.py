"""The engine on a tiny model: jobs mixed in one step, spread over steps, and refused."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

from gpu_worker.device import transfer
from gpu_worker.device.placement import Placement
from gpu_worker.device.transfer import TYPES, StepDownload, Upload
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.loading import load
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.schedule.interface import JobSlice
from shared.errors import InputTooLong, Internal, InvalidInput, UnsupportedDimensions, UnsupportedTask
from shared.jobs import Classify, Encode, Job, RaggedTokens, Score
from shared.vectors import DataType, Layout, ScoringMethod
from support.random_models import random_model
from support.tiny import (
    CPU,
    DENSE,
    MULTI,
    SPARSE,
    ask,
    encode,
    random_ids,
    score,
    tokens,
)


@pytest.fixture(scope="module")
def engine() -> ModelEngine:
    return ModelEngine(load(random_model("tiny-bert"), Placement.choose("cpu", "float32")))


@pytest.mark.parametrize(
    ("name", "works"),
    [
        ("tiny-classifier", [Classify()]),
        ("tiny-token-classifier", [Classify(tokens=True)]),
        ("tiny-yes-no", [Classify()]),
        ("tiny-splade", [encode(SPARSE), encode(SPARSE, sparse_top_k=3), score(ScoringMethod.SPARSE, 1)]),
        ("tiny-bge-m3", [encode(SPARSE), encode(MULTI), encode(MULTI, data_type=DataType.BINARY)]),
    ],
)
def test_nan_of_a_head_is_told(name: str, works: list[Encode | Score | Classify]) -> None:
    """Hidden states are sound, what the head makes of them is not."""
    model = load(random_model(name), CPU)
    for module in model.heads.modules():
        for weight in (*module.parameters(), *module.buffers()):
            if weight.is_floating_point():
                weight.data.fill_(float("nan"))
    for work in works:
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


def test_all_arrays_arrive_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every type and shape, empty ones and those of one number, which may have a stride of 0."""
    monkeypatch.setattr(transfer, "to_device", lambda host, _: host.clone())
    upload = Upload(torch.device("xpu"))
    arrays = [np.arange(size).astype(kind).reshape(-1, 1) for kind in TYPES for size in (0, 1, 2, 70)]
    arrays += [as_strided(np.arange(1).astype(kind), strides=(0,)) for kind in TYPES]
    uploads = [upload.add_array(each) for each in arrays]
    upload.send()
    for array, uploaded in zip(arrays, uploads, strict=True):
        assert uploaded.tensor.shape == array.shape
        assert np.array_equal(uploaded.tensor.numpy(), array)
        assert uploaded.tensor.numpy().dtype == array.dtype
