"""Rerank, Score and MaxSim: public messages <-> domain types, both directions side by side."""

from collections.abc import Sequence
from typing import Any

from frontend_service.codec.fields import costs, enum, floats, optional, positive
from frontend_service.requests import Cut, MaxSimRequest, ScoreRequest
from frontend_service.service import Answer
from selvage.v1 import ranking_pb2, usage_pb2
from shared.codec import duration_to_pb, vectors_from_pb
from shared.errors import InvalidInput, UnsupportedTask
from shared.job_codec import weights_from_pb
from shared.jobs import HybridWeights, JobResult
from shared.vectors import DataType, Layout, ScoringMethod


def _score_options(message: ranking_pb2.RerankRequest | ranking_pb2.ScoreRequest) -> dict[str, Any]:
    method = enum(ScoringMethod, message.method, "method", ScoringMethod.DENSE) if message.method else None
    cuts = {
        side: Cut(truncate=message.truncate, max_tokens=positive(message, field), field=field)
        for side, field in (("query_cut", "max_tokens_per_query"), ("document_cut", "max_tokens_per_document"))
    }
    return {
        "model": message.model,
        "method": method,
        "normalize": optional(message, "normalize"),
        "instruction": optional(message, "instruction"),
        "weights": _weights(message, method),
        **cuts,
    }


def _weights(
    message: ranking_pb2.RerankRequest | ranking_pb2.ScoreRequest, method: ScoringMethod | None
) -> HybridWeights | None:
    if not message.HasField("weights"):
        return None
    if method is not ScoringMethod.HYBRID:
        raise InvalidInput("weights need the method HYBRID", field="weights")
    try:
        return weights_from_pb(message.weights)
    except ValueError as error:
        raise InvalidInput(f"weights: {error}", field="weights") from error


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
    return ranking_pb2.RerankResponse(model=answer.model, results=results, **costs(answer))


def score_request(message: ranking_pb2.ScoreRequest) -> ScoreRequest:
    return ScoreRequest(
        queries=tuple(message.queries),
        documents=tuple(message.documents),
        layout=enum(Layout, message.layout, "layout", Layout.MATRIX),
        **_score_options(message),
    )


def score_response(answer: Answer, request: ScoreRequest) -> ranking_pb2.ScoreResponse:
    rows, columns = request.layout.shape(len(request.queries), len(request.documents))
    return ranking_pb2.ScoreResponse(
        model=answer.model, scores=floats(answer.result.scores), rows=rows, columns=columns, **costs(answer)
    )


def max_sim_request(message: ranking_pb2.MaxSimRequest) -> MaxSimRequest:
    if message.explain:
        raise UnsupportedTask("explain is not built yet", field="explain")
    for field in ("queries", "documents"):
        number = getattr(message, field).data_type
        enum(DataType, number, f"{field}.data_type", DataType.FLOAT32)
    return MaxSimRequest(
        queries=vectors_from_pb(message.queries, "queries"),
        documents=vectors_from_pb(message.documents, "documents"),
        layout=enum(Layout, message.layout, "layout", Layout.MATRIX),
        normalize=bool(optional(message, "normalize")),
    )


def max_sim_response(request: MaxSimRequest, result: JobResult) -> ranking_pb2.MaxSimResponse:
    rows, columns = request.layout.shape(len(request.queries.lengths), len(request.documents.lengths))
    timing = usage_pb2.Timing(queue=duration_to_pb(result.queue), compute=duration_to_pb(result.compute))
    return ranking_pb2.MaxSimResponse(scores=floats(result.scores), rows=rows, columns=columns, timing=timing)
