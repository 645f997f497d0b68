"""The step's token budget, from what the largest step took; on fake devices whose memory is a function of tokens."""

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.loading import Model, load
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.startup.trials import (
    FEWEST,
    SPARE_MEMORY,
    Trial,
    find_step_size,
    largest_jobs,
    run_largest_steps,
    try_step_sizes,
)
from shared.errors import ModelRefused
from shared.jobs import Classify, Encode, Score
from shared.vectors import OutputKind
from support.checked import checked
from support.random_models import random_model
from support.tiny import CPU

ROOM = 24 << 30


def device(weights: int, token: int) -> Callable[[int], Trial]:
    """A step takes the weights and so many bytes a token, and runs out where that is more than there is."""

    def measure(tokens: int) -> Trial:
        taken = weights + tokens * token
        return Trial(tokens=tokens, taken=taken if taken <= ROOM else None, available=ROOM)

    return measure


@given(weights=st.integers(0, ROOM * 3 // 2), token=st.integers(0, 1 << 24), default=st.integers(FEWEST, 1 << 17))
def test_what_is_settled_fits(weights: int, token: int, default: int) -> None:
    """With a tenth to spare, unless it is the least; no halving went too far; else the model is refused."""
    measure = device(weights, token)
    if measure(FEWEST).taken is None:
        with pytest.raises(ModelRefused, match=f"a step of {FEWEST} tokens runs out of 24.0 GiB"):
            find_step_size(measure, default)
        return
    trials = find_step_size(measure, default)
    *before, last = trials
    assert last.taken is not None
    assert last.taken <= (1 - SPARE_MEMORY) * ROOM or last.tokens == FEWEST
    assert not any(each.fits for each in before)
    assert all(after.tokens == max(FEWEST, each.tokens // 2) for each, after in pairwise(trials))


@cache
def model(name: str) -> Model:
    return load(random_model(name), CPU)


class Counted:
    """An encoder on a device whose memory is a function of tokens: it runs out as a device would."""

    uncounted, token_types = None, None

    def __init__(self, encoder: Encoder, memory: "FakeMemory") -> None:
        self._encoder, self._memory = encoder, memory
        self.uncounted, self.token_types = encoder.uncounted, encoder.token_types
        self.width, self.description, self.model = encoder.width, encoder.description, encoder.model

    def __call__(self, batch: RaggedBatch) -> torch.Tensor:
        self._memory.take(batch)
        return self._encoder(batch)


class FakeMemory:
    """1,000 bytes of weights, and one a token of a step."""

    def __init__(self, available: int) -> None:
        self.available, self.peak = available, 0
        self.batches: list[tuple[int, int]] = []

    def reset_peak(self) -> None:
        self.peak = 0

    def take(self, batch: RaggedBatch) -> None:
        self.batches.append((batch.total, batch.longest))
        self.peak = max(self.peak, 1000 + batch.total)
        if self.peak > self.available:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")


class OnDevice(Placement):
    """Whose default step is small enough for two cores."""

    step_tokens = 2048  # type: ignore[assignment]


def engine(name: str, memory: FakeMemory) -> ModelEngine:
    made = model(name)
    placement = OnDevice(device=CPU.device, dtype=CPU.dtype)
    return ModelEngine(replace(made, encoder=Counted(made.encoder, memory), placement=placement))  # type: ignore[arg-type]


HEADS = ["tiny-bert", "tiny-bge-m3", "tiny-splade", "tiny-colbert", "tiny-cross-encoder", "tiny-token-classifier"]


@pytest.mark.parametrize("name", HEADS)
def test_a_real_engine_is_given_what_its_device_holds(name: str) -> None:
    """Steps that run out are answered, not raised, and halved; no step has more tokens than were tried."""
    memory = FakeMemory(available=1000 + 700)
    trials = try_step_sizes(engine(name, memory), memory)
    assert [each.tokens for each in trials] == [2048, 1024, 512]
    assert [each.taken for each in trials] == [None, None, 1000 + max(total for total, _ in memory.batches[-2:])]
    assert max(total for total, _ in memory.batches) <= 2048
    whole = [total for total, _ in memory.batches if total == 512]
    assert whole or name == "tiny-splade"  # whose costs count its vocabulary


@pytest.mark.parametrize("name", HEADS)
def test_the_largest_step_has_long_texts_and_short_ones(name: str) -> None:
    """As long as the model takes, and of one token; in either every output that there is, and the dearest scores."""
    made = model(name)
    jobs = list(largest_jobs(made, 2048))
    shapes = {job.tokens.lengths for job in jobs}
    assert shapes == {(1, *[made.longest] * (2047 // made.longest), 2047 % made.longest), (1,) * 2048}
    assert all(job.tokens.total == 2048 for job in jobs)
    works = {type(job.work) for job in jobs}
    heads = made.heads
    assert (Encode in works) == any((heads.dense, heads.sparse, heads.multi_vector))
    assert (Score in works) == (heads.multi_vector is not None)
    assert (Classify in works) == (heads.classifier is not None or heads.token_classifier is not None)
    for job in jobs:
        if isinstance(job.work, Encode):
            assert (OutputKind.SPARSE in job.work.outputs) == (heads.sparse is not None)
            assert (OutputKind.MULTI_VECTOR in job.work.outputs) == (heads.multi_vector is not None)


def test_nothing_is_rehearsed_on_a_processor() -> None:
    memory = FakeMemory(available=1)
    assert try_step_sizes(engine("tiny-bert", memory), CPU.device_memory) == []
    assert memory.batches == []


def held() -> int:
    """Bytes of all tensors that are alive."""
    storages = {
        each.untyped_storage()._cdata: each.untyped_storage().nbytes()
        for each in gc.get_objects()
        if issubclass(type(each), torch.Tensor) and each.layout == torch.strided
    }
    return sum(storages.values())


@pytest.mark.parametrize("name", ["tiny-bge-m3", "tiny-cross-encoder"])
@pytest.mark.parametrize("available", [10**6, 1000], ids=["room", "full"])
def test_memory_after_many_steps_is_that_after_one(name: str, available: int) -> None:
    """Steps that ran leave nothing even to the garbage collector; those that ran out leave it their token ids."""
    memory = FakeMemory(available=available)
    made = engine(name, memory)
    run_largest_steps(made, memory, 300)
    gc.collect()
    after_one = held()
    gc.disable()
    try:
        for _ in range(10):
            run_largest_steps(made, memory, 300)
        if available == 1000:
            gc.collect()
        assert held() == after_one
    finally:
        gc.enable()


def test_check_prints_what_was_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial, and the tokens of a step that came of them."""
    memory = FakeMemory(available=1000 + 700)
    made = engine("tiny-bert", memory).model
    monkeypatch.setattr(OnDevice, "device_memory", memory)
    monkeypatch.setattr("gpu_worker.worker.load_model", lambda settings: made)
    assert checked("tiny") == 0
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert [line[3] for line in lines if line[:3] == ["device,", "largest", "step"]] == [
        "a step of 2048 tokens runs out of 0.0 GiB",
        "a step of 1024 tokens runs out of 0.0 GiB",
        "a step of 512 tokens takes 0.0 of 0.0 GiB",
    ]
    assert ["step,", "at", "most", "512 tokens"] in lines
