"""Rows and numbers that are written beside protobuf make the message that protobuf would have written."""

import tracemalloc
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from frontend_service.api.packed import INDEX_BYTES, put_floats, put_rows, put_weights
from frontend_service.api.selvage_v1.embed_rpcs import EmbedReply, embed_response_to_pb
from frontend_service.domain.requests import EmbedRequest
from frontend_service.services.pipeline import Answer
from selvage.v1.embedding_pb2 import EmbedResponse, EmbedStreamResponse
from selvage.v1.usage_pb2 import Timing, Usage
from selvage.v1.vectors_pb2 import DenseVectors, MultiVectors
from shared.jobs import JobResult, RaggedTokens, Rows
from shared.value_codec import number
from shared.vectors import DataType, OutputKind
from tei.v1 import tei_pb2 as pb

BYTES = some.binary(max_size=400)
ROWS = some.none() | some.builds(Rows, dimensions=some.integers(1, 300), data=BYTES, scales=BYTES)


def request_for(data_type: DataType) -> EmbedRequest:
    return EmbedRequest(texts=("a", "b"), outputs=(OutputKind.DENSE,), data_type=data_type, return_token_ids=True)


def answer(result: JobResult) -> Answer:
    return Answer(
        model="m",
        result=result,
        ranked_by=result.scores,
        tokens=RaggedTokens.of([[1, 2], [3]]),
        truncated=(False, True),
        token_counts=(2, 1),
        tokenize=0.5,
        transfer=0.25,
        answered=1.0,
    )


@given(ROWS, ROWS, some.sampled_from(DataType), some.lists(some.integers(0, 9), max_size=5))
def test_it_is_the_message_that_protobuf_writes(
    dense: Rows | None, tokens: Rows | None, data_type: DataType, lengths: list[int]
) -> None:
    """With and without either output, rows, scales and times; alone and in a stream's reply."""
    ids = bytes(range(8))
    result = JobResult(dense=dense, tokens=tokens, row_lengths=tuple(lengths), token_ids=ids)
    reply = embed_response_to_pb(request_for(data_type), answer(result))
    reply.timing.CopyFrom(Timing(tokenize={"seconds": 3}))
    usage = Usage(prompt_tokens=3, token_counts=[2, 1], truncated=[False, True])
    expected = EmbedResponse(model="m", usage=usage, timing=reply.timing)
    if dense is not None:
        rows = DenseVectors(count=2, dimensions=dense.dimensions, data=bytes(dense.data), scales=bytes(dense.scales))
        expected.dense.CopyFrom(rows)
        expected.dense.data_type = number(data_type)
    if tokens is not None:
        expected.multi_vector.CopyFrom(
            MultiVectors(
                data_type=number(data_type),
                dimensions=tokens.dimensions,
                lengths=lengths,
                token_ids=[0x03020100, 0x07060504],
                data=bytes(tokens.data),
                scales=bytes(tokens.scales),
            )
        )
    assert EmbedResponse.FromString(reply.SerializeToString()) == expected
    envelope = EmbedStreamResponse(id=2**40, start=3, more=True)
    in_stream = EmbedStreamResponse(id=2**40, start=3, more=True, response=expected)
    assert EmbedStreamResponse.FromString(reply.serialize_in(envelope)) == in_stream


def test_rows_are_copied_once() -> None:
    rows = Rows(dimensions=1, data=bytes(4_000_000))
    reply = EmbedReply(EmbedResponse(model="m"))
    tracemalloc.start()
    try:
        reply.add_rows(MultiVectors(dimensions=1), rows)
        assert len(reply.SerializeToString()) > 4_000_000
        assert tracemalloc.get_traced_memory()[1] < 1.25 * 4_000_000
    finally:
        tracemalloc.stop()


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
