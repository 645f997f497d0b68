"""Embed: public messages <-> domain types, both directions side by side."""

from google.rpc.code_pb2 import Code

from frontend_service.api.packed import integers, put_floats
from frontend_service.api.selvage_v1.codec.embed_reply import EmbedReply
from frontend_service.api.selvage_v1.codec.fields import cut, enum, id_lists, optional, positive, prompt, usage
from frontend_service.domain.answer import Answer
from frontend_service.domain.requests import EmbedRequest, TokenPooling
from selvage.v1 import embedding_pb2, vectors_pb2
from shared.codec.fields import duration_to_pb, number
from shared.errors import InvalidInput, SelvageError
from shared.vectors import DataType, OutputKind


def embed_request(message: embedding_pb2.EmbedRequest) -> EmbedRequest:
    outputs: dict[OutputKind, None] = {}
    for index, kind in enumerate(message.outputs):
        if kind == 0:
            raise InvalidInput(f"outputs[{index}] is unspecified", field=f"outputs[{index}]")
        outputs[enum(OutputKind, kind, f"outputs[{index}]", OutputKind.DENSE)] = None
    return EmbedRequest(
        model=message.model,
        texts=tuple(message.texts),
        tokenized=id_lists(message.tokenized),
        prompt=prompt(message),
        cut=cut(message),
        outputs=tuple(outputs),
        dimensions=optional(message, "dimensions"),
        normalize=optional(message, "normalize"),
        data_type=enum(DataType, message.data_type, "data_type", DataType.FLOAT32),
        return_token_ids=message.return_token_ids,
        sparse_top_k=positive(message, "sparse_top_k"),
        pooling=_pooling(message),
    )


def _pooling(message: embedding_pb2.EmbedRequest) -> TokenPooling | None:
    factor, protected = optional(message, "pool_factor"), optional(message, "protected_tokens")
    if factor is None:
        if protected is not None:
            raise InvalidInput("protected_tokens needs pool_factor", field="protected_tokens")
        return None
    return TokenPooling(factor=factor, protected=1 if protected is None else protected)


def embed_reply(request: EmbedRequest, answer: Answer) -> EmbedReply:
    result, kind = answer.result, number(request.data_type)
    response = embedding_pb2.EmbedResponse(model=answer.model, usage=usage(answer))
    reply = EmbedReply(response)
    if (dense := result.dense) is not None:
        count = len(answer.tokens)
        reply.add(vectors_pb2.DenseVectors(data_type=kind, dimensions=dense.dimensions, count=count), dense)
    if result.sparse is not None:
        response.sparse.lengths.extend(result.sparse.lengths)
        response.sparse.indices.extend(integers(result.sparse.indices))
        put_floats(response.sparse, "values", result.sparse.values)
    if (tokens := result.tokens) is not None:
        vectors = vectors_pb2.MultiVectors(data_type=kind, dimensions=tokens.dimensions, lengths=result.row_lengths)
        if request.return_token_ids:
            vectors.token_ids.extend(integers(result.token_ids))
        reply.add(vectors, tokens)
    return reply


def stream_error(error: SelvageError) -> embedding_pb2.StreamError:
    message = embedding_pb2.StreamError(
        code=Code.Value(error.status), reason=error.reason, message=error.message, field=error.field
    )
    if error.retry_after is not None:
        message.retry_after.CopyFrom(duration_to_pb(error.retry_after))
    return message


def halves(message: embedding_pb2.EmbedRequest) -> list[tuple[int, embedding_pb2.EmbedRequest]]:
    """The same request of the first texts and of the others, each with the place of its first; one text is one half."""
    count = max(len(message.texts), len(message.tokenized))
    if count < 2:
        return [(0, message)]
    parts = []
    for start, stop in ((0, count // 2), (count // 2, count)):
        part = embedding_pb2.EmbedRequest()
        part.CopyFrom(message)
        for texts in (part.texts, part.tokenized):
            del texts[stop:]
            del texts[:start]
        parts.append((start, part))
    return parts
