"""Messages of Embed and EmbedStream <-> domain types, both directions side by side."""

from google.rpc.code_pb2 import Code

from frontend_service.api.packed import as_int32, put_floats
from frontend_service.api.selvage_v1.codec.embed_reply import EmbedReply
from frontend_service.api.selvage_v1.codec.fields import (
    enum_from_pb,
    id_lists_from_pb,
    optional_field,
    positive_field,
    prompt_from_pb,
    truncation_from_pb,
    usage_to_pb,
)
from frontend_service.domain.answer import Answer
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import EmbedRequest, SpanPooling, TokenPooling
from selvage.v1 import embedding_pb2, vectors_pb2
from shared.errors import InvalidInput, SelvageError, printable
from shared.value_codec import duration_to_pb, number
from shared.vectors import DataType, OutputKind

DEFAULT_LIMITS = Limits()


def embed_request_from_pb(message: embedding_pb2.EmbedRequest, limits: Limits = DEFAULT_LIMITS) -> EmbedRequest:
    """Reads a message. Raises InvalidInput, and LimitExceeded for more spans than `limits` allow."""
    outputs: dict[OutputKind, None] = {}
    for index, kind in enumerate(message.outputs):
        if kind == 0:
            raise InvalidInput(f"outputs[{index}] is unspecified", field=f"outputs[{index}]")
        outputs[enum_from_pb(OutputKind, kind, f"outputs[{index}]", OutputKind.DENSE)] = None
    return EmbedRequest(
        model=message.model,
        texts=tuple(message.texts),
        tokenized=id_lists_from_pb(message.tokenized),
        prompt=prompt_from_pb(message),
        cut=truncation_from_pb(message),
        outputs=tuple(outputs),
        dimensions=optional_field(message, "dimensions"),
        normalize=optional_field(message, "normalize"),
        data_type=enum_from_pb(DataType, message.data_type, "data_type", DataType.FLOAT32),
        return_token_ids=message.return_token_ids,
        sparse_top_k=positive_field(message, "sparse_top_k"),
        pooling=_pooling_from_pb(message),
        span_pooling=_span_pooling_from_pb(message, limits),
    )


def _span_pooling_from_pb(message: embedding_pb2.EmbedRequest, limits: Limits) -> SpanPooling | None:
    overlap = optional_field(message, "window_overlap")
    if not message.late_chunking and not message.spans:
        if overlap is not None:
            raise InvalidInput("window_overlap needs late_chunking or spans", field="window_overlap")
        return None
    if not message.spans:
        return SpanPooling(window_overlap=overlap)
    if message.late_chunking:
        raise InvalidInput("late_chunking and spans are both given; at most one may be", field="spans")
    for index, spans in enumerate(message.spans):
        if len(spans.starts) != len(spans.ends):
            counts = f"{len(spans.starts)} starts and {len(spans.ends)} ends"
            raise InvalidInput(f"spans[{index}] has {counts}", field=f"spans[{index}]")
    # Before tuples are made of them, which take thirty times the bytes of the message.
    limits.check_count(sum(len(spans.starts) for spans in message.spans), "spans", limits.spans)
    bounds = tuple(tuple(zip(spans.starts, spans.ends, strict=True)) for spans in message.spans)
    return SpanPooling(spans=bounds, window_overlap=overlap)


def _pooling_from_pb(message: embedding_pb2.EmbedRequest) -> TokenPooling | None:
    factor, protected = optional_field(message, "pool_factor"), optional_field(message, "protected_tokens")
    if factor is None:
        if protected is not None:
            raise InvalidInput("protected_tokens needs pool_factor", field="protected_tokens")
        return None
    return TokenPooling(factor=factor, protected=1 if protected is None else protected)


def embed_response_to_pb(request: EmbedRequest, answer: Answer) -> EmbedReply:
    result, data_type = answer.result, number(request.data_type)
    response = embedding_pb2.EmbedResponse(model=answer.model, usage=usage_to_pb(answer))
    reply = EmbedReply(response)
    if (dense := result.dense) is not None:
        count = request.dense_rows
        reply.add_rows(vectors_pb2.DenseVectors(data_type=data_type, dimensions=dense.dimensions, count=count), dense)
    if result.sparse is not None:
        response.sparse.lengths.extend(result.sparse.lengths)
        response.sparse.indices.extend(as_int32(result.sparse.indices))
        put_floats(response.sparse, "values", result.sparse.values)
    if (tokens := result.tokens) is not None:
        vectors = vectors_pb2.MultiVectors(
            data_type=data_type, dimensions=tokens.dimensions, lengths=result.row_lengths
        )
        if request.return_token_ids:
            vectors.token_ids.extend(as_int32(result.token_ids))
        reply.add_rows(vectors, tokens)
    return reply


def stream_error_to_pb(error: SelvageError) -> embedding_pb2.StreamError:
    message = embedding_pb2.StreamError(
        code=Code.Value(error.status),
        reason=error.reason,
        message=printable(error.message),
        field=printable(error.field),
    )
    if error.retry_after is not None:
        message.retry_after.CopyFrom(duration_to_pb(error.retry_after))
    return message


def halve_request(message: embedding_pb2.EmbedRequest) -> list[tuple[int, embedding_pb2.EmbedRequest]]:
    """Splits the texts of a request into two requests, each with the place of its first text; one text stays whole."""
    count = max(len(message.texts), len(message.tokenized))
    if count < 2:
        return [(0, message)]
    requests = []
    for start, stop in ((0, count // 2), (count // 2, count)):
        half = embedding_pb2.EmbedRequest()
        half.CopyFrom(message)
        for texts in (half.texts, half.tokenized, half.spans):
            del texts[stop:]
            del texts[:start]
        requests.append((start, half))
    return requests
