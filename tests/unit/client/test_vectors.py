"""Vectors as they travel <-> numpy: the service's own packing, read back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from selvage.messages import vectors
from selvage.messages.options import enum_name, enum_names, enum_number
from selvage.v1 import vectors_pb2
from shared import vectors as domain
from shared.packing import pack
from shared.value_codec import vectors_from_pb
from shared.vectors import DataType

rows = arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 19)), elements=st.floats(-4, 4, width=32))


def travelled(values: np.ndarray, data_type: DataType) -> vectors_pb2.DenseVectors:
    """Packed as a frontend does."""
    packed = pack(values, data_type)
    return vectors_pb2.DenseVectors(
        data_type=data_type.value,
        count=len(values),
        dimensions=packed.dimensions,
        data=bytes(packed.data),
        scales=bytes(packed.scales),
    )


@given(rows)
def test_every_data_type_is_read_back(values: np.ndarray) -> None:
    """Exactly where the type holds the value, within half a step where it does not."""
    messages = {kind: travelled(values, kind) for kind in DataType}
    read = {kind: vectors.rows(message) for kind, message in messages.items()}
    assert np.array_equal(read[DataType.FLOAT32], values)
    assert np.array_equal(read[DataType.FLOAT16], values.astype(np.float16))
    assert (np.abs(read[DataType.BFLOAT16] - values) <= np.abs(values) * 2.0**-8 + 1e-38).all()
    assert read[DataType.BFLOAT16].dtype == np.float32
    scales = vectors.scales(messages[DataType.INT8])
    assert read[DataType.INT8].dtype == np.int8
    assert (np.abs(read[DataType.INT8] * scales[:, None] - values) <= scales[:, None] * 0.5001).all()
    bits = np.unpackbits(read[DataType.BINARY], axis=1)[:, : values.shape[1]]
    assert np.array_equal(bits.astype(bool), values >= 0)


@pytest.mark.parametrize(("dtype", "sent"), [("f8", "FLOAT32"), ("f4", "FLOAT32"), ("f2", "FLOAT16")])
def test_arrays_are_sent_as_the_service_reads_them(dtype: str, sent: str) -> None:
    """Rows, lengths and widths, empty texts included."""
    sides = [np.arange(6, dtype=dtype).reshape(2, 3), np.zeros((0, 3), dtype=dtype), np.ones((1, 3), dtype=dtype)]
    read = vectors_from_pb(vectors.to_multi_vectors(sides), "queries")
    assert (read.data_type, read.dimensions, read.lengths) == (domain.DataType[sent], 3, (2, 0, 1))
    wire = np.frombuffer(read.data, dtype="<f2" if sent == "FLOAT16" else "<f4").reshape(-1, 3)
    assert np.array_equal(wire, np.concatenate(sides).astype(wire.dtype))


def test_choices_are_the_words_of_the_contract() -> None:
    """Every enum, both ways."""
    for enum in (vectors_pb2.DataType, vectors_pb2.OutputKind, vectors_pb2.ScoringMethod, vectors_pb2.InputType):
        for number in enum.values():
            if number:
                assert enum_number(enum, enum_name(enum.DESCRIPTOR, number), "field") == number
    assert enum_names(vectors_pb2.OutputKind) == ("dense", "sparse", "multi_vector")
    assert enum_name(vectors_pb2.OutputKind.DESCRIPTOR, 77) == "77"
