"""Messages of Embed, EmbedSparse and EmbedAll <-> domain types, both directions side by side.

The messages of a group have equal options, so that those of the first one count.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from frontend_service.api.packed import put_floats, put_pairs, put_rows
from frontend_service.api.tei_v1.codec.fields import compute_metadata, prompt_from_pb, texts_from_pb, truncation_from_pb
from frontend_service.domain.answer import Answer
from frontend_service.domain.requests import EmbedRequest
from shared.vectors import OutputKind
from tei.v1 import tei_pb2 as pb

NUMBER_BYTES = 4
"""Bytes of a float32 and of an int32."""


def embed_request_from_pb(messages: Sequence[pb.EmbedRequest]) -> EmbedRequest:
    first = messages[0]
    return EmbedRequest(
        texts=texts_from_pb(message.inputs for message in messages),
        outputs=(OutputKind.DENSE,),
        prompt=prompt_from_pb(first),
        cut=truncation_from_pb(first),
        normalize=first.normalize if first.HasField("normalize") else True,
        dimensions=first.dimensions if first.HasField("dimensions") else None,
    )


def embed_responses_to_pb(request: EmbedRequest, answer: Answer) -> list[pb.EmbedResponse]:
    rows, replies = answer.result.dense, []
    assert rows is not None
    width = NUMBER_BYTES * rows.dimensions
    for place, (text, tokens) in enumerate(zip(request.texts, answer.tokens.lengths, strict=True)):
        reply = pb.EmbedResponse(metadata=compute_metadata(text, tokens=tokens))
        put_floats(reply, "embeddings", rows.data[place * width : (place + 1) * width])
        replies.append(reply)
    return replies


def embed_sparse_request_from_pb(messages: Sequence[pb.EmbedSparseRequest]) -> EmbedRequest:
    return _embed_request(messages, OutputKind.SPARSE)


def embed_sparse_responses_to_pb(request: EmbedRequest, answer: Answer) -> list[pb.EmbedSparseResponse]:
    rows, replies = answer.result.sparse, []
    assert rows is not None
    slices = _byte_slices(rows.lengths, NUMBER_BYTES)
    for text, tokens, row in zip(request.texts, answer.tokens.lengths, slices, strict=True):
        reply = pb.EmbedSparseResponse(metadata=compute_metadata(text, tokens=tokens))
        put_pairs(reply, "sparse_embeddings", rows.indices[row], rows.values[row])
        replies.append(reply)
    return replies


def embed_all_request_from_pb(messages: Sequence[pb.EmbedAllRequest]) -> EmbedRequest:
    return _embed_request(messages, OutputKind.MULTI_VECTOR, normalize=False)


def embed_all_responses_to_pb(request: EmbedRequest, answer: Answer) -> list[pb.EmbedAllResponse]:
    rows, replies = answer.result.tokens, []
    assert rows is not None
    slices = _byte_slices(answer.result.row_lengths, NUMBER_BYTES * rows.dimensions)
    for text, tokens, row in zip(request.texts, answer.tokens.lengths, slices, strict=True):
        reply = pb.EmbedAllResponse(metadata=compute_metadata(text, tokens=tokens))
        put_rows(reply, "token_embeddings", "embeddings", rows.data[row], rows.dimensions)
        replies.append(reply)
    return replies


def _embed_request(
    messages: Sequence[pb.EmbedSparseRequest] | Sequence[pb.EmbedAllRequest],
    output: OutputKind,
    normalize: bool | None = None,
) -> EmbedRequest:
    first = messages[0]
    return EmbedRequest(
        texts=texts_from_pb(message.inputs for message in messages),
        outputs=(output,),
        prompt=prompt_from_pb(first),
        cut=truncation_from_pb(first),
        normalize=normalize,
    )


def _byte_slices(lengths: Sequence[int], size: int) -> list[slice]:
    """The slice of each text in the bytes of all, for texts of so many entries of `size` bytes."""
    bounds = pairwise(accumulate((length * size for length in lengths), initial=0))
    return [slice(start, stop) for start, stop in bounds]
