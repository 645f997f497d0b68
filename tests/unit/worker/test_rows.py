"""Pooling, cutting, normalising and packing of rows, against a loop, obvious twins and sentence-transformers' own."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util.quantization import quantize_embeddings
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_worker.device.transfer import StepDownload, Upload
from gpu_worker.engine.step.rows import RowFormat, RowGroup
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.model.heads import pooling
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.repository.recipe import POOLINGS
from shared.vectors import DataType, MultiVectors

WIDTH = 6
TEXTS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 14)), min_size=1, max_size=8)
"""Lengths, and tokens that are left out; these may be more than there are."""
MODES = st.lists(st.sampled_from(POOLINGS), min_size=1, max_size=6, unique=True)


def hidden_of(lengths: list[int], dtype: torch.dtype = torch.float32) -> tuple[Tensor, RaggedBatch]:
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32) for length in lengths], torch.device("cpu"))
    generator = torch.Generator().manual_seed(sum(lengths))
    return torch.randn(batch.total, WIDTH, generator=generator).to(dtype), batch


def oracle(rows: Tensor, modes: list[str], left_out: int) -> Tensor:
    module = Pooling(WIDTH, tuple(modes), include_prompt=not left_out)
    ones = torch.ones(1, len(rows), dtype=torch.long)
    features = {"token_embeddings": rows[None], "attention_mask": ones, "prompt_length": left_out}
    result: Tensor = module(features)["sentence_embedding"]
    return result[0]


@settings(deadline=None, max_examples=150)
@given(TEXTS, MODES, st.sampled_from([torch.float32, torch.bfloat16]))
def test_every_mode_is_that_of_sentence_transformers(
    texts: list[tuple[int, int]], modes: list[str], dtype: torch.dtype
) -> None:
    """Several concatenated in the order given, ragged lengths, prompts left out, both number formats."""
    texts = [(length, min(skip, length - 1)) for length, skip in texts]
    lengths = [length for length, _ in texts]
    hidden, batch = hidden_of(lengths, dtype)
    ours = pooling.pool(hidden, batch, modes, np.array([skip for _, skip in texts]))
    rows = hidden.float().split(lengths)
    expected = [oracle(row, modes, skip) for row, (_, skip) in zip(rows, texts, strict=True)]
    assert torch.allclose(ours, torch.stack(expected), atol=1e-6)


@given(TEXTS)
def test_a_text_that_is_all_prompt_becomes_zeros(texts: list[tuple[int, int]]) -> None:
    """Not NaN and not minus infinity, in every mode that sums or compares; its neighbours are not touched. Modes that
    take one token take the first or the last of the text."""
    lengths = [length for length, _ in texts]
    hidden, batch = hidden_of(lengths)
    modes = [mode for mode in POOLINGS if mode not in ("cls", "lasttoken")]
    empty = np.arange(len(texts)) % 2 == 0
    ours = pooling.pool(hidden, batch, modes, np.where(empty, lengths, 0))
    assert not ours[torch.from_numpy(empty)].any()
    ends = [torch.stack([row[place] for row in hidden.split(lengths)]) for place in (0, -1)]
    assert torch.equal(pooling.pool(hidden, batch, ("cls", "lasttoken"), np.array(lengths)), torch.cat(ends, dim=1))
    others = torch.from_numpy(~empty)
    assert torch.equal(ours[others], pooling.pool(hidden, batch, modes)[others])


@settings(deadline=None)
@given(TEXTS, st.sampled_from(POOLINGS), st.data())
def test_a_pooled_row_does_not_depend_on_its_neighbours(
    texts: list[tuple[int, int]], mode: str, data: st.DataObject
) -> None:
    lengths, skip = [length for length, _ in texts], np.array([skip for _, skip in texts])
    hidden, batch = hidden_of(lengths)
    place = data.draw(st.integers(0, len(texts) - 1))
    _, alone = hidden_of([lengths[place]])
    row = pooling.pool(hidden.split(lengths)[place], alone, (mode,), skip[place : place + 1])
    assert torch.equal(pooling.pool(hidden, batch, (mode,), skip)[place], row[0])


class Gathers(TorchDispatchMode):
    """Remembers how many rows every copy of rows has."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.index_select.default:
            self.rows.append(len(result))
        return result


def test_ranges_that_overlap_are_never_copied_all_at_once() -> None:
    """Their largest numbers are those of a loop, also where a range lies in two blocks."""
    hidden = torch.randn(300, 4, generator=torch.Generator().manual_seed(3))
    starts, lengths = np.arange(200), np.full(200, 100)
    upload = Upload(hidden.device)
    largest = pooling.plan_pooling(starts, lengths, np.zeros_like(starts), ["max"], upload)
    upload.send()
    with Gathers() as gathers:
        rows = largest(hidden)
    assert sum(gathers.rows) == 200 * 100
    assert max(gathers.rows) <= pooling.BLOCK < 200 * 100
    assert torch.equal(rows, torch.stack([hidden[start : start + 100].amax(dim=0) for start in starts.tolist()]))


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=8))
def test_dimensions_and_normalising_mix_in_one_batch(wishes: list[tuple[int, bool]]) -> None:
    """Each row is cut and normalised as its own job wants."""
    rows, download = torch.randn(len(wishes), 6, generator=torch.Generator().manual_seed(1)), StepDownload()
    groups: dict[RowFormat, RowGroup] = {}
    outputs = []
    for number, (width, unit) in enumerate(wishes):
        form = RowFormat(dimensions=width, unit=unit, data_type=DataType.FLOAT32)
        outputs.append(groups.setdefault(form, RowGroup(form)).add_rows(np.array([number])))
    for group in groups.values():
        group.finish(rows[torch.from_numpy(group.index)], download)
    download.send()
    download.wait()
    for output, raw, (width, wanted) in zip(outputs, rows, wishes, strict=True):
        expected = raw[:width] / raw[:width].norm() if wanted else raw[:width]
        assert np.allclose(output.values.view(np.float32)[0], expected, atol=1e-6)
        assert output.finite


@pytest.mark.parametrize("data_type", list(DataType))
@pytest.mark.parametrize("width", [1, 7, 8, 384])
def test_packed_bytes_have_the_size_that_was_promised(data_type: DataType, width: int) -> None:
    rows = torch.randn(5, width, generator=torch.Generator().manual_seed(width))
    data, scales = row_kernels.pack(rows, data_type)
    assert data.shape == (5, data_type.row_bytes(width))
    vectors = MultiVectors(
        data_type=data_type,
        dimensions=width,
        lengths=(2, 0, 3),
        data=data.numpy().tobytes(),
        scales=b"" if scales is None else scales.numpy().tobytes(),
    )
    expected = torch.where(rows >= 0, 1.0, -1.0) if data_type is DataType.BINARY else rows
    assert torch.allclose(row_kernels.unpack(vectors), expected, atol=2e-2, rtol=1e-2)


def test_binary_equals_sentence_transformers() -> None:
    """Eight dimensions a byte, most significant bit first; zero counts as one here and as nothing there."""
    rows = torch.randn(4, 32, generator=torch.Generator().manual_seed(5))
    ours, _ = row_kernels.pack(rows, DataType.BINARY)
    assert np.array_equal(ours.numpy(), quantize_embeddings(rows.numpy(), "ubinary"))


def test_int8_of_a_zero_row_is_zero() -> None:
    data, scales = row_kernels.pack(torch.zeros(1, 3), DataType.INT8)
    assert scales is not None
    assert not data.any()
    assert torch.isfinite(scales).all()
