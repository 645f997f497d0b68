"""Packing by numpy against that by PyTorch."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gpu_worker.kernels.rows import row_kernels
from shared.packing import pack
from shared.vectors import DataType

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=300, deadline=None)
@given(
    arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=20), elements=numbers), st.sampled_from(DataType)
)
def test_bytes_of_every_data_type(rows: np.ndarray, data_type: DataType) -> None:
    """Bit for bit the other's, zeros, subnormal numbers and those beyond a type's range included."""
    data, scales = row_kernels.pack(torch.from_numpy(rows), data_type)
    ours = pack(rows, data_type)
    assert ours.dimensions == rows.shape[1]
    assert ours.data == data.numpy().tobytes()
    assert ours.scales == (b"" if scales is None else scales.numpy().tobytes())


def test_halves_round_to_the_even_one() -> None:
    """Numbers half way between two of bfloat16, and a little beside, in both directions."""
    bits = np.array([[0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF808000, 0x7F7FFFFF]], dtype=np.uint32)
    packed = np.frombuffer(pack(bits.view(np.float32), DataType.BFLOAT16).data, dtype="<u2")
    assert packed.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0xBF80, 0x7F80]
