"""Embed, EmbedSparse and EmbedAll: messages <-> domain types, both directions side by side."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from frontend_service.api.packed import put_floats, put_pairs, put_rows
from frontend_service.api.tei_v1.codec.fields import counted, cut, prompt, texts
from frontend_service.domain.answer import Answer
from frontend_service.domain.requests import EmbedRequest
from shared.vectors import OutputKind
from tei.v1 import tei_pb2 as pb

NUMBER_BYTES = 4


def dense_request(messages: Sequence[pb.EmbedRequest]) -> EmbedRequest:
    one = messages[0]
    return EmbedRequest(
        texts=texts(each.inputs for each in messages),
        outputs=(OutputKind.DENSE,),
        prompt=prompt(one),
        cut=cut(one),
        normalize=one.normalize if one.HasField("normalize") else True,
        dimensions=one.dimensions if one.HasField("dimensions") else None,
    )


def dense_replies(request: EmbedRequest, answer: Answer) -> list[pb.EmbedResponse]:
    rows, replies = answer.result.dense, []
    assert rows is not None
    width = NUMBER_BYTES * rows.dimensions
    for place, (text, tokens) in enumerate(zip(request.texts, answer.tokens.lengths, strict=True)):
        reply = pb.EmbedResponse(metadata=counted(text, tokens=tokens))
        put_floats(reply, "embeddings", rows.data[place * width : (place + 1) * width])
        replies.append(reply)
    return replies


def sparse_request(messages: Sequence[pb.EmbedSparseRequest]) -> EmbedRequest:
    return _request(messages, OutputKind.SPARSE)


def sparse_replies(request: EmbedRequest, answer: Answer) -> list[pb.EmbedSparseResponse]:
    rows, replies = answer.result.sparse, []
    assert rows is not None
    places = _places(rows.lengths, NUMBER_BYTES)
    for text, tokens, row in zip(request.texts, answer.tokens.lengths, places, strict=True):
        reply = pb.EmbedSparseResponse(metadata=counted(text, tokens=tokens))
        put_pairs(reply, "sparse_embeddings", rows.indices[row], rows.values[row])
        replies.append(reply)
    return replies


def all_request(messages: Sequence[pb.EmbedAllRequest]) -> EmbedRequest:
    return _request(messages, OutputKind.MULTI_VECTOR, normalize=False)


def all_replies(request: EmbedRequest, answer: Answer) -> list[pb.EmbedAllResponse]:
    rows, replies = answer.result.tokens, []
    assert rows is not None
    places = _places(answer.result.row_lengths, NUMBER_BYTES * rows.dimensions)
    for text, tokens, row in zip(request.texts, answer.tokens.lengths, places, strict=True):
        reply = pb.EmbedAllResponse(metadata=counted(text, tokens=tokens))
        put_rows(reply, "token_embeddings", "embeddings", rows.data[row], rows.dimensions)
        replies.append(reply)
    return replies


def _request(
    messages: Sequence[pb.EmbedSparseRequest] | Sequence[pb.EmbedAllRequest],
    output: OutputKind,
    normalize: bool | None = None,
) -> EmbedRequest:
    one = messages[0]
    return EmbedRequest(
        texts=texts(each.inputs for each in messages),
        outputs=(output,),
        prompt=prompt(one),
        cut=cut(one),
        normalize=normalize,
    )


def _places(lengths: Sequence[int], size: int) -> list[slice]:
    """Where the bytes of each text lie, whose entries have `size` bytes each."""
    bounds = pairwise(accumulate((each * size for each in lengths), initial=0))
    return [slice(start, stop) for start, stop in bounds]
