"""Numbers put into messages as bytes are those that were put in one by one."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from frontend_service.api.packed import INDEX_BYTES, put_floats, put_rows, put_weights
from tei.v1 import tei_pb2 as pb

FLOATS = some.floats(width=32, allow_nan=False)


@given(some.lists(FLOATS, max_size=300))
def test_floats(values: list[float]) -> None:
    message = pb.EmbedResponse()
    put_floats(message, "embeddings", np.array(values, dtype="<f4").tobytes())
    assert message == pb.EmbedResponse(embeddings=values)


@given(some.integers(0, 5), some.integers(1, 200), some.randoms())
def test_rows(count: int, width: int, random: Random) -> None:
    rows = [[random.uniform(-1, 1) for _ in range(width)] for _ in range(count)]
    message, expected = pb.EmbedAllResponse(), pb.EmbedAllResponse()
    put_rows(message, "token_embeddings", "embeddings", np.array(rows, dtype="<f4").tobytes(), width)
    for row in np.array(rows, dtype="<f4").reshape(count, width):
        expected.token_embeddings.add(embeddings=row.tolist())
    assert message == expected


@given(some.dictionaries(some.integers(0, 2 ** (7 * INDEX_BYTES) - 1), FLOATS, max_size=50))
def test_pairs(weights: dict[int, float]) -> None:
    """Indices of any length, zero included; what is sent on is as short as it can be."""
    message, expected = pb.EmbedSparseResponse(), pb.EmbedSparseResponse()
    indices, values = np.array([*weights], dtype="<i4"), np.array([*weights.values()], dtype="<f4")
    put_weights(message, "sparse_embeddings", indices.tobytes(), values.tobytes())
    for index, value in zip(indices.tolist(), values.tolist(), strict=True):
        expected.sparse_embeddings.add(index=index, value=value)
    assert message == expected
    assert message.SerializeToString() == expected.SerializeToString()
