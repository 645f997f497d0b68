"""Pooling, truncation, normalising, packing and MaxSim against obvious twins."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers.util.quantization import quantize_embeddings

from gpu_worker.device.transfer import StepDownload
from gpu_worker.engine.step.rows import RowFormat, RowGroup
from gpu_worker.kernels.rows import row_kernels
from shared.vectors import DataType, MultiVectors


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
