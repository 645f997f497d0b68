"""A reply whose rows are written beside protobuf is the message that protobuf would have written."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as some

from frontend_service.api.selvage_v1.embed_rpcs import EmbedReply, embed_response_to_pb
from frontend_service.domain.requests import EmbedRequest
from frontend_service.services.pipeline import Answer
from selvage.v1.embedding_pb2 import EmbedResponse, EmbedStreamResponse
from selvage.v1.usage_pb2 import Timing, Usage
from selvage.v1.vectors_pb2 import DenseVectors, MultiVectors
from shared.jobs import JobResult, RaggedTokens, Rows
from shared.value_codec import number
from shared.vectors import DataType, OutputKind

BYTES = some.binary(max_size=400)
ROWS = some.none() | some.builds(Rows, dimensions=some.integers(1, 300), data=BYTES, scales=BYTES)


def asked(data_type: DataType) -> EmbedRequest:
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
    reply = embed_response_to_pb(asked(data_type), answer(result))
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
    told = EmbedStreamResponse(id=2**40, start=3, more=True)
    in_stream = EmbedStreamResponse(id=2**40, start=3, more=True, response=expected)
    assert EmbedStreamResponse.FromString(reply.serialize_in(told)) == in_stream


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
