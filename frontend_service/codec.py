"""Public messages <-> domain types, both directions side by side. Presence and open enums are settled here."""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from frontend_service.limits import Limits
from frontend_service.requests import Cut, EmbedRequest, MaxSimRequest, PromptChoice, ScoreRequest, TokenizeRequest
from frontend_service.service import Answer
from frontend_service.tokenization import TokenizedText
from selvage.v1 import embedding_pb2, model_pb2, ranking_pb2, usage_pb2, vectors_pb2
from shared.codec import duration_to_pb, vectors_from_pb
from shared.errors import InvalidInput, UnsupportedTask
from shared.jobs import JobResult, Rows
from shared.vectors import DataType, InputType, Layout, OutputKind, ScoringMethod, TruncationSide

E = TypeVar("E", bound=IntEnum)


def _enum(kind: type[E], number: int, field: str, default: E) -> E:
    """Unknown numbers arrive as plain ints; 0 is the default."""
    if number == 0:
        return default
    try:
        return kind(number)
    except ValueError:
        known = ", ".join(f"{each.value} ({each.name})" for each in kind)
        raise InvalidInput(f"{field} is {number}; there are {known}", field=field) from None


def _optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def _positive(message: Any, field: str) -> int | None:
    value: int | None = _optional(message, field)
    if value is not None and value < 1:
        raise InvalidInput(f"{field} is {value}, must be at least 1", field=field)
    return value


def _prompt(message: embedding_pb2.EmbedRequest | model_pb2.TokenizeRequest) -> PromptChoice:
    return PromptChoice(
        literal=_optional(message, "prompt"),
        name=_optional(message, "prompt_name"),
        input_type=_enum(InputType, message.input_type, "input_type", InputType.UNSPECIFIED),
    )


def _cut(message: embedding_pb2.EmbedRequest | model_pb2.TokenizeRequest) -> Cut:
    side = _enum(TruncationSide, message.truncation_side, "truncation_side", TruncationSide.RIGHT)
    return Cut(truncate=message.truncate, side=side, max_tokens=_positive(message, "max_tokens"))


def id_lists(tokenized: Iterable[embedding_pb2.TokenIds]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(each.ids) for each in tokenized)


def embed_request(message: embedding_pb2.EmbedRequest) -> EmbedRequest:
    if message.HasField("sparse_top_k") and vectors_pb2.OUTPUT_KIND_SPARSE not in message.outputs:
        raise InvalidInput("sparse_top_k needs the output SPARSE", field="sparse_top_k")
    outputs: dict[OutputKind, None] = {}
    for index, number in enumerate(message.outputs):
        if number == 0:
            raise InvalidInput(f"outputs[{index}] is unspecified", field=f"outputs[{index}]")
        outputs[_enum(OutputKind, number, f"outputs[{index}]", OutputKind.DENSE)] = None
    return EmbedRequest(
        model=message.model,
        texts=tuple(message.texts),
        tokenized=id_lists(message.tokenized),
        prompt=_prompt(message),
        cut=_cut(message),
        outputs=tuple(outputs),
        dimensions=_optional(message, "dimensions"),
        normalize=_optional(message, "normalize"),
        data_type=_enum(DataType, message.data_type, "data_type", DataType.FLOAT32),
        return_token_ids=message.return_token_ids,
    )


def embed_response(answer: Answer, request: EmbedRequest) -> embedding_pb2.EmbedResponse:
    result, kind = answer.result, _number(request.data_type)
    response = embedding_pb2.EmbedResponse(model=answer.model, **_costs(answer))
    if result.dense is not None:
        response.dense.count = len(answer.tokens)
        _set_rows(response.dense, kind, result.dense)
    if result.tokens is not None:
        response.multi_vector.lengths.extend(result.row_lengths)
        _set_rows(response.multi_vector, kind, result.tokens)
        if request.return_token_ids:
            response.multi_vector.token_ids.extend(memoryview(answer.tokens.ids).cast("i"))
    return response


def _set_rows(message: vectors_pb2.DenseVectors | vectors_pb2.MultiVectors, data_type: Any, rows: Rows) -> None:
    message.data_type = data_type
    message.dimensions = rows.dimensions
    message.data = rows.data
    message.scales = rows.scales


def _number(value: IntEnum) -> Any:
    return int(value)


def _costs(answer: Answer) -> dict[str, Any]:
    counts = answer.tokens.lengths
    usage = usage_pb2.Usage(prompt_tokens=sum(counts), token_counts=counts, truncated=answer.truncated)
    timing = usage_pb2.Timing(
        tokenize=duration_to_pb(answer.tokenize),
        queue=duration_to_pb(answer.result.queue),
        compute=duration_to_pb(answer.result.compute),
    )
    return {"usage": usage, "timing": timing}


def _score_options(message: ranking_pb2.RerankRequest | ranking_pb2.ScoreRequest) -> dict[str, Any]:
    method = _enum(ScoringMethod, message.method, "method", ScoringMethod.DENSE) if message.method else None
    if message.HasField("weights") and method is not ScoringMethod.HYBRID:
        raise InvalidInput("weights need the method HYBRID", field="weights")
    cuts = {
        side: Cut(truncate=message.truncate, max_tokens=_positive(message, field), field=field)
        for side, field in (("query_cut", "max_tokens_per_query"), ("document_cut", "max_tokens_per_document"))
    }
    return {
        "model": message.model,
        "method": method,
        "normalize": _optional(message, "normalize"),
        "instruction": _optional(message, "instruction"),
        **cuts,
    }


def rerank_request(message: ranking_pb2.RerankRequest) -> ScoreRequest:
    if message.explain:
        raise UnsupportedTask("explain is not built yet", field="explain")
    return ScoreRequest(
        queries=(message.query,),
        documents=tuple(message.documents),
        layout=Layout.MATRIX,
        query_entry="query",
        **_score_options(message),
    )


def rerank_response(
    answer: Answer, ranking: Sequence[tuple[int, float]], documents: Sequence[str] | None
) -> ranking_pb2.RerankResponse:
    results = [
        ranking_pb2.RerankResult(index=index, score=score, document=None if documents is None else documents[index])
        for index, score in ranking
    ]
    return ranking_pb2.RerankResponse(model=answer.model, results=results, **_costs(answer))


def score_request(message: ranking_pb2.ScoreRequest) -> ScoreRequest:
    return ScoreRequest(
        queries=tuple(message.queries),
        documents=tuple(message.documents),
        layout=_enum(Layout, message.layout, "layout", Layout.MATRIX),
        **_score_options(message),
    )


def score_response(answer: Answer, request: ScoreRequest) -> ranking_pb2.ScoreResponse:
    rows, columns = request.layout.shape(len(request.queries), len(request.documents))
    return ranking_pb2.ScoreResponse(
        model=answer.model, scores=_floats(answer.result.scores), rows=rows, columns=columns, **_costs(answer)
    )


def _floats(scores: bytes) -> Any:
    return memoryview(scores).cast("f")


def max_sim_request(message: ranking_pb2.MaxSimRequest) -> MaxSimRequest:
    if message.explain:
        raise UnsupportedTask("explain is not built yet", field="explain")
    for field in ("queries", "documents"):
        number = getattr(message, field).data_type
        _enum(DataType, number, f"{field}.data_type", DataType.FLOAT32)
    return MaxSimRequest(
        queries=vectors_from_pb(message.queries, "queries"),
        documents=vectors_from_pb(message.documents, "documents"),
        layout=_enum(Layout, message.layout, "layout", Layout.MATRIX),
        normalize=bool(_optional(message, "normalize")),
    )


def max_sim_response(request: MaxSimRequest, result: JobResult) -> ranking_pb2.MaxSimResponse:
    rows, columns = request.layout.shape(len(request.queries.lengths), len(request.documents.lengths))
    timing = usage_pb2.Timing(queue=duration_to_pb(result.queue), compute=duration_to_pb(result.compute))
    return ranking_pb2.MaxSimResponse(scores=_floats(result.scores), rows=rows, columns=columns, timing=timing)


def tokenize_request(message: model_pb2.TokenizeRequest) -> TokenizeRequest:
    return TokenizeRequest(model=message.model, texts=tuple(message.texts), prompt=_prompt(message), cut=_cut(message))


def tokenize_response(name: str, tokenized: Sequence[TokenizedText]) -> model_pb2.TokenizeResponse:
    response = model_pb2.TokenizeResponse(model=name)
    for text in tokenized:
        encoding = text.encoding
        response.texts.add(
            ids=encoding.ids,
            tokens=encoding.tokens,
            special=map(bool, encoding.special_tokens_mask),
            starts=[start for start, _ in encoding.offsets],
            ends=[end for _, end in encoding.offsets],
            truncated=text.truncated,
        )
    return response


def limits_to_pb(limits: Limits, queued_tokens: int) -> model_pb2.Limits:
    return model_pb2.Limits(
        texts=limits.texts,
        documents=limits.documents,
        text_bytes=limits.text_bytes,
        message_bytes=limits.message_bytes,
        request_tokens=limits.request_tokens,
        request_rows=limits.request_rows,
        scores=limits.scores,
        similarities=limits.similarities,
        vector_elements=limits.vector_elements,
        queued_tokens=queued_tokens,
    )
