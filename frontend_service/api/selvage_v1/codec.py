"""Messages of selvage.v1 <-> domain types, both directions side by side. Knows no gRPC.

Fields that requests have in common come first, then Embed, Rerank with Score and MaxSim, Classify, and models. The
reply to an Embed is serialised with one copy of its rows: protobuf would copy them four times, into the message, into a
buffer that grows, again as that grows, and into bytes.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message
from google.rpc.code_pb2 import Code

from frontend_service.api.packed import as_int32, put_floats
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import (
    ClassifyRequest,
    ClassifyTokensRequest,
    DetokenizeRequest,
    EmbedRequest,
    MaxSimRequest,
    PromptChoice,
    RerankRequest,
    ScoreNormalization,
    ScoreRequest,
    SpanPooling,
    TokenizeRequest,
    TokenPooling,
    Truncation,
)
from frontend_service.services.classify import Classified, ClassifiedTokens
from frontend_service.services.models import Detokenized, ShownTexts
from frontend_service.services.pipeline import Answer, ServedModel, Timing
from frontend_service.services.rank import Reranked
from selvage.v1 import classification_pb2, embedding_pb2, model_pb2, ranking_pb2, usage_pb2, vectors_pb2
from selvage.v1.embedding_pb2 import EmbedResponse, EmbedStreamResponse
from selvage.v1.vectors_pb2 import DenseVectors, MultiVectors
from shared.errors import InvalidInput, SelvageError, printable
from shared.jobs import HybridWeights, PackedBytes, Rows
from shared.link_codec import weights_from_pb
from shared.server.options import REQUEST_BYTES
from shared.value_codec import BYTES, card_to_pb, duration_to_pb, number, varint, vectors_from_pb
from shared.vectors import DataType, InputType, Layout, OutputKind, ScoringMethod, TruncationSide

E = TypeVar("E", bound=IntEnum)


def enum_from_pb(kind: type[E], number: int, field: str, default: E) -> E:
    """Converts a number to its enum; 0 is the default. Raises InvalidInput for an unknown number."""
    if number == 0:
        return default
    try:
        return kind(number)
    except ValueError:
        choices = ", ".join(f"{member.value} ({member.name})" for member in kind)
        raise InvalidInput(f"{field} is {number}; there are {choices}", field=field) from None


def optional_field(message: Any, field: str) -> Any:
    """The value of a field, or None where it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def positive_field(message: Any, field: str) -> int | None:
    """The value of a field, or None where it is not set. Raises InvalidInput below 1."""
    value: int | None = optional_field(message, field)
    if value is not None and value < 1:
        raise InvalidInput(f"{field} is {value}, must be at least 1", field=field)
    return value


Prompted = (
    embedding_pb2.EmbedRequest
    | model_pb2.TokenizeRequest
    | classification_pb2.ClassifyRequest
    | classification_pb2.ClassifyTokensRequest
)


def prompt_from_pb(message: Prompted) -> PromptChoice:
    """The prompt that goes before each text. Only some requests have an input type."""
    number = getattr(message, "input_type", 0)
    return PromptChoice(
        literal=optional_field(message, "prompt"),
        name=optional_field(message, "prompt_name"),
        input_type=enum_from_pb(InputType, number, "input_type", InputType.UNSPECIFIED),
    )


def truncation_from_pb(message: Prompted) -> Truncation:
    """The treatment of texts over the limit."""
    number = getattr(message, "truncation_side", 0)
    side = enum_from_pb(TruncationSide, number, "truncation_side", TruncationSide.RIGHT) if number else None
    return Truncation(
        truncate=optional_field(message, "truncate"), side=side, max_tokens=positive_field(message, "max_tokens")
    )


def _text_fields(message: Prompted) -> dict[str, Any]:
    """Fields that requests about texts have in common, by their names in the domain types."""
    return {
        "model": message.model,
        "texts": tuple(message.texts),
        "prompt": prompt_from_pb(message),
        "cut": truncation_from_pb(message),
    }


def id_lists_from_pb(tokenized: Iterable[embedding_pb2.TokenIds]) -> tuple[Sequence[int], ...]:
    """Lists of ids, four bytes an id: a tuple would take nine times as many, and a message has millions."""
    return tuple(array("i", token_ids.ids) for token_ids in tokenized)


def usage_to_pb(answer: Answer) -> usage_pb2.Usage:
    """The token counts of a reply."""
    return usage_pb2.Usage(
        prompt_tokens=answer.tokens.total, token_counts=answer.token_counts, truncated=answer.truncated
    )


def timing_to_pb(timing: Timing) -> usage_pb2.Timing:
    return usage_pb2.Timing(
        tokenize=duration_to_pb(timing.tokenize),
        queue=duration_to_pb(timing.queue),
        compute=duration_to_pb(timing.compute),
        transfer=duration_to_pb(timing.transfer),
        postprocess=duration_to_pb(timing.postprocess),
    )


Vectors = TypeVar("Vectors", DenseVectors, MultiVectors)
FIELD_NUMBERS: dict[type[Message], int] = {
    DenseVectors: EmbedResponse.DENSE_FIELD_NUMBER,
    MultiVectors: EmbedResponse.MULTI_VECTOR_FIELD_NUMBER,
}
"""The field of an EmbedResponse that takes each kind of vectors."""


@dataclass(slots=True)
class EmbedReply:
    """An EmbedResponse whose rows are not in its message: `head` has all other fields."""

    head: EmbedResponse
    _rows: list[PackedBytes] = dataclass_field(default_factory=list)

    @property
    def timing(self) -> usage_pb2.Timing:
        """The times of the response, to be filled."""
        return self.head.timing

    def add_rows(self, vectors: Vectors, rows: Rows) -> None:
        """Adds a field of vectors: `vectors` without its numbers, whose bytes are in `rows`."""
        inner: list[PackedBytes] = [vectors.SerializeToString()]
        for field_number, data in ((vectors.DATA_FIELD_NUMBER, rows.data), (vectors.SCALES_FIELD_NUMBER, rows.scales)):
            if len(data):
                inner += length_delimited(field_number, data)
        self._rows += length_delimited(FIELD_NUMBERS[type(vectors)], *inner)

    def SerializeToString(self) -> bytes:  # noqa: N802 - the name that messages have for it
        """Serialises the response."""
        return b"".join(self._pieces())

    def serialize_in(self, head: EmbedStreamResponse) -> bytes:
        """Serialises the response within the reply to a batch, whose other fields are in `head`."""
        response = length_delimited(EmbedStreamResponse.RESPONSE_FIELD_NUMBER, *self._pieces())
        return b"".join([head.SerializeToString(), *response])

    def _pieces(self) -> list[PackedBytes]:
        return [self.head.SerializeToString(), *self._rows]


def length_delimited(number: int, *inner: PackedBytes) -> list[PackedBytes]:
    """A length-delimited field (bytes or a message) whose content is `inner`, end to end, as pieces: none is copied."""
    return [varint(number << 3 | BYTES) + varint(sum(map(len, inner))), *inner]


DEFAULT_LIMITS = Limits()


def embed_request_from_pb(message: embedding_pb2.EmbedRequest, limits: Limits = DEFAULT_LIMITS) -> EmbedRequest:
    """Reads a message. Raises InvalidInput, and LimitExceeded for more spans than `limits` allow."""
    outputs: dict[OutputKind, None] = {}
    for index, kind in enumerate(message.outputs):
        if kind == 0:
            raise InvalidInput(f"outputs[{index}] is unspecified", field=f"outputs[{index}]")
        outputs[enum_from_pb(OutputKind, kind, f"outputs[{index}]", OutputKind.DENSE)] = None
    return EmbedRequest(
        **_text_fields(message),
        tokenized=id_lists_from_pb(message.tokenized),
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


Scoring = ranking_pb2.RerankRequest | ranking_pb2.ScoreRequest


def _score_options(message: Scoring) -> dict[str, Any]:
    """Fields that Rerank and Score have in common, by their names in the domain types."""
    method = enum_from_pb(ScoringMethod, message.method, "method", ScoringMethod.DENSE) if message.method else None
    return {
        "model": message.model,
        "method": method,
        "normalization": ScoreNormalization.of(optional_field(message, "normalize")),
        "instruction": optional_field(message, "instruction"),
        "weights": _weights_from_pb(message, method),
        "part_of_list": message.part_of_list,
        "query_cut": _cut_from_pb(message, "max_tokens_per_query"),
        "document_cut": _cut_from_pb(message, "max_tokens_per_document"),
    }


def _cut_from_pb(message: Scoring | ranking_pb2.MaxSimRequest, field: str) -> Truncation:
    """The treatment of texts over the limit that `field` sets."""
    truncate = optional_field(message, "truncate")
    return Truncation(truncate=truncate, max_tokens=positive_field(message, field), field=field)


def _weights_from_pb(message: Scoring, method: ScoringMethod | None) -> HybridWeights | None:
    if not message.HasField("weights"):
        return None
    if method is not ScoringMethod.HYBRID:
        raise InvalidInput("weights need the method HYBRID", field="weights")
    try:
        return weights_from_pb(message.weights)
    except ValueError as error:
        raise InvalidInput(f"weights: {error}", field="weights") from error


def rerank_request_from_pb(message: ranking_pb2.RerankRequest) -> RerankRequest:
    return RerankRequest(
        queries=(message.query,),
        documents=tuple(message.documents),
        explain=message.explain,
        top_n=optional_field(message, "top_n"),
        return_documents=message.return_documents,
        **_score_options(message),
    )


def rerank_response_to_pb(reranked: Reranked) -> ranking_pb2.RerankResponse:
    answer, explanations = reranked.answer, reranked.explanations
    response = ranking_pb2.RerankResponse(model=answer.model, usage=usage_to_pb(answer))
    activated = answer.ranked_by != answer.result.scores
    logits = np.frombuffer(answer.ranked_by, dtype="<f4") if activated else None
    for rank, ((index, score), text) in enumerate(zip(reranked.ranking, reranked.texts, strict=True)):
        logit = None if logits is None else logits[index]
        result = response.results.add(index=index, score=score, document=text, logit=logit)
        for match in explanations[rank] if explanations else ():
            result.explanation.add(
                query_token=match.query_token,
                document_token=match.document_token,
                document_position=match.position,
                similarity=match.similarity,
            )
    return response


def score_request_from_pb(message: ranking_pb2.ScoreRequest) -> ScoreRequest:
    return ScoreRequest(
        queries=tuple(message.queries),
        documents=tuple(message.documents),
        layout=enum_from_pb(Layout, message.layout, "layout", Layout.MATRIX),
        **_score_options(message),
    )


def score_response_to_pb(request: ScoreRequest, answer: Answer) -> ranking_pb2.ScoreResponse:
    rows, columns = request.layout.shape(len(request.queries), len(request.documents))
    response = ranking_pb2.ScoreResponse(model=answer.model, rows=rows, columns=columns, usage=usage_to_pb(answer))
    put_floats(response, "scores", answer.result.scores)
    return response


def max_sim_request_from_pb(message: ranking_pb2.MaxSimRequest) -> MaxSimRequest:
    for field in ("queries", "documents"):
        number = getattr(message, field).data_type
        enum_from_pb(DataType, number, f"{field}.data_type", DataType.FLOAT32)
    has_vectors = message.HasField("queries")
    return MaxSimRequest(
        queries=vectors_from_pb(message.queries, "queries") if has_vectors else None,
        documents=vectors_from_pb(message.documents, "documents"),
        layout=enum_from_pb(Layout, message.layout, "layout", Layout.MATRIX),
        normalize=optional_field(message, "normalize"),
        explain=message.explain,
        query_texts=tuple(message.query_texts),
        model=message.model,
        instruction=optional_field(message, "instruction") if message.query_texts else None,
        query_cut=_cut_from_pb(message, "max_tokens_per_query") if message.query_texts else Truncation(),
    )


def max_sim_response_to_pb(request: MaxSimRequest, answer: Answer) -> ranking_pb2.MaxSimResponse:
    rows, columns = request.layout.shape(request.query_count, len(request.documents.lengths))
    response = ranking_pb2.MaxSimResponse(
        model=answer.model if request.query_texts else "",
        rows=rows,
        columns=columns,
        winners=as_int32(answer.result.winners),
        usage=usage_to_pb(answer) if request.query_texts else None,
    )
    put_floats(response, "scores", answer.result.scores)
    put_floats(response, "similarities", answer.result.similarities)
    return response


def classify_request_from_pb(message: classification_pb2.ClassifyRequest) -> ClassifyRequest:
    return ClassifyRequest(
        **_text_fields(message),
        pairs=tuple(message.text_pairs),
        normalize=optional_field(message, "normalize"),
    )


def classify_response_to_pb(classified: Classified) -> classification_pb2.ClassifyResponse:
    answer, labels = classified.answer, classified.labels
    response = classification_pb2.ClassifyResponse(model=answer.model, labels=labels, usage=usage_to_pb(answer))
    put_floats(response, "scores", answer.result.scores)
    return response


def classify_tokens_request_from_pb(message: classification_pb2.ClassifyTokensRequest) -> ClassifyTokensRequest:
    return ClassifyTokensRequest(
        **_text_fields(message),
        token_id=optional_field(message, "token_id"),
        normalize=optional_field(message, "normalize"),
    )


def classify_tokens_response_to_pb(tokens: ClassifiedTokens) -> classification_pb2.ClassifyTokensResponse:
    answer = tokens.answer
    response = classification_pb2.ClassifyTokensResponse(
        model=answer.model,
        labels=tokens.labels,
        lengths=answer.result.row_lengths,
        token_ids=tokens.ids,
        starts=tokens.starts,
        ends=tokens.ends,
        usage=usage_to_pb(answer),
    )
    put_floats(response, "scores", answer.result.scores)
    return response


def get_model_response_to_pb(model: ServedModel, limits: Limits) -> model_pb2.GetModelResponse:
    return model_pb2.GetModelResponse(card=card_to_pb(model.card), limits=limits_to_pb(limits, model.queued_tokens))


def tokenize_request_from_pb(message: model_pb2.TokenizeRequest) -> TokenizeRequest:
    return TokenizeRequest(**_text_fields(message))


def tokenize_response_to_pb(shown: ShownTexts) -> model_pb2.TokenizeResponse:
    response = model_pb2.TokenizeResponse(model=shown.model)
    for text in shown.texts:
        encoding, offsets = text.encoding, text.offsets
        response.texts.add(
            ids=encoding.ids,
            tokens=encoding.tokens,
            special=map(bool, encoding.special_tokens_mask),
            starts=[start for start, _ in offsets],
            ends=[end for _, end in offsets],
            truncated=text.truncated,
            expansion_tokens=text.expansion,
        )
    return response


def detokenize_request_from_pb(message: model_pb2.DetokenizeRequest) -> DetokenizeRequest:
    return DetokenizeRequest(
        model=message.model,
        tokenized=id_lists_from_pb(message.tokenized),
        skip_special_tokens=message.skip_special_tokens,
        input_type=enum_from_pb(InputType, message.input_type, "input_type", InputType.UNSPECIFIED),
    )


def detokenize_response_to_pb(detokenized: Detokenized) -> model_pb2.DetokenizeResponse:
    return model_pb2.DetokenizeResponse(model=detokenized.model, texts=detokenized.texts)


def limits_to_pb(limits: Limits, queued_tokens: int) -> model_pb2.Limits:
    return model_pb2.Limits(
        texts=limits.texts,
        documents=limits.documents,
        text_bytes=limits.text_bytes,
        message_bytes=REQUEST_BYTES,
        request_tokens=limits.request_tokens,
        request_rows=limits.request_rows,
        scores=limits.scores,
        similarities=limits.similarities,
        vector_elements=limits.vector_elements,
        queued_tokens=queued_tokens,
        pooled_tokens=limits.pooled_tokens,
        spans=limits.spans,
    )
