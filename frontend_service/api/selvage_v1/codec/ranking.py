"""Messages of Rerank, Score and MaxSim <-> domain types, both directions side by side."""

from typing import Any

import numpy as np

from frontend_service.api.packed import as_int32, put_floats
from frontend_service.api.selvage_v1.codec.fields import enum_from_pb, optional_field, positive_field, usage_to_pb
from frontend_service.domain.answer import Answer
from frontend_service.domain.ranking_requests import MaxSimRequest, RerankRequest, ScoreNormalization, ScoreRequest
from frontend_service.domain.requests import Truncation
from frontend_service.services.ranking import Reranked
from selvage.v1 import ranking_pb2
from shared.errors import InvalidInput
from shared.jobs import HybridWeights
from shared.link_codec import weights_from_pb
from shared.value_codec import vectors_from_pb
from shared.vectors import DataType, Layout, ScoringMethod


def _score_options(message: ranking_pb2.RerankRequest | ranking_pb2.ScoreRequest) -> dict[str, Any]:
    """Fields that Rerank and Score have in common, by their names in the domain types."""
    method = enum_from_pb(ScoringMethod, message.method, "method", ScoringMethod.DENSE) if message.method else None
    cuts = {
        side: Truncation(
            truncate=optional_field(message, "truncate"), max_tokens=positive_field(message, field), field=field
        )
        for side, field in (("query_cut", "max_tokens_per_query"), ("document_cut", "max_tokens_per_document"))
    }
    return {
        "model": message.model,
        "method": method,
        "normalization": ScoreNormalization.of(optional_field(message, "normalize")),
        "instruction": optional_field(message, "instruction"),
        "weights": _weights_from_pb(message, method),
        "part_of_list": message.part_of_list,
        **cuts,
    }


def _weights_from_pb(
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


def rerank_request_from_pb(message: ranking_pb2.RerankRequest) -> RerankRequest:
    return RerankRequest(
        queries=(message.query,),
        documents=tuple(message.documents),
        explain=message.explain,
        top_n=optional_field(message, "top_n"),
        return_documents=message.return_documents,
        **_score_options(message),
    )


def rerank_response_to_pb(_: RerankRequest, reranked: Reranked) -> ranking_pb2.RerankResponse:
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
        query_cut=_query_truncation(message) if message.query_texts else Truncation(),
    )


def _query_truncation(message: ranking_pb2.MaxSimRequest) -> Truncation:
    field = "max_tokens_per_query"
    return Truncation(
        truncate=optional_field(message, "truncate"), max_tokens=positive_field(message, field), field=field
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
