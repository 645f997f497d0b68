"""Messages of selvage.v1 but Embed's <-> domain types, both directions side by side.

Rerank with Score and MaxSim, Classify, and models; what they share with Embed is in `embed_rpcs.py`.
"""

from typing import Any

import numpy as np

from frontend_service.api.packed import as_int32, put_floats
from frontend_service.api.selvage_v1.embed_rpcs import (
    Fields,
    enum_from_pb,
    fields_of,
    id_lists_from_pb,
    pooling_from_pb,
    positive_field,
    prompt_from_pb,
    truncation_from_pb,
    usage_to_pb,
)
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import (
    ClassifyRequest,
    ClassifyTokensRequest,
    DetokenizeRequest,
    MaxSimRequest,
    RerankRequest,
    ScoreNormalization,
    ScoreRequest,
    TokenizeRequest,
    Truncation,
)
from frontend_service.services.classify import Classified, ClassifiedTokens
from frontend_service.services.models import Detokenized, ShownTexts
from frontend_service.services.pipeline import Answer, ServedModel
from frontend_service.services.rank import Reranked
from selvage.v1 import classification_pb2, model_pb2, ranking_pb2
from shared.errors import InvalidInput
from shared.jobs import HybridWeights
from shared.link_codec import weights_from_pb
from shared.server.options import REQUEST_BYTES
from shared.value_codec import card_to_pb, vectors_from_pb
from shared.vectors import DataType, InputType, Layout, ScoringMethod

Scoring = ranking_pb2.RerankRequest | ranking_pb2.ScoreRequest


def _score_options(message: Scoring, fields: Fields) -> dict[str, Any]:
    """Fields that Rerank and Score have in common, by their names in the domain types."""
    method = enum_from_pb(ScoringMethod, message.method, "method", ScoringMethod.DENSE) if message.method else None
    return {
        "model": message.model,
        "method": method,
        "normalization": ScoreNormalization.of(fields.get("normalize")),
        "instruction": fields.get("instruction"),
        "weights": _weights_from_pb(message, method),
        "part_of_list": message.part_of_list,
        "query_cut": _cut_from_pb(fields, "max_tokens_per_query"),
        "document_cut": _cut_from_pb(fields, "max_tokens_per_document"),
        "pooling": pooling_from_pb(fields),
    }


def _cut_from_pb(fields: Fields, field: str) -> Truncation:
    """The treatment of texts over the limit that `field` sets."""
    return Truncation(truncate=fields.get("truncate"), max_tokens=positive_field(fields, field), field=field)


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
    fields = fields_of(message)
    return RerankRequest(
        queries=(message.query,),
        documents=tuple(message.documents),
        explain=message.explain,
        top_n=fields.get("top_n"),
        return_documents=message.return_documents,
        **_score_options(message, fields),
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
        **_score_options(message, fields_of(message)),
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
    fields = fields_of(message)
    return MaxSimRequest(
        queries=vectors_from_pb(message.queries, "queries") if "queries" in fields else None,
        documents=vectors_from_pb(message.documents, "documents"),
        layout=enum_from_pb(Layout, message.layout, "layout", Layout.MATRIX),
        normalize=fields.get("normalize"),
        explain=message.explain,
        query_texts=tuple(message.query_texts),
        model=message.model,
        instruction=fields.get("instruction") if message.query_texts else None,
        query_cut=_cut_from_pb(fields, "max_tokens_per_query") if message.query_texts else Truncation(),
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


def _text_fields(fields: Fields) -> dict[str, Any]:
    """Fields that requests about texts have in common, by their names in the domain types."""
    return {
        "model": fields.get("model", ""),
        "texts": tuple(fields.get("texts", ())),
        "prompt": prompt_from_pb(fields),
        "cut": truncation_from_pb(fields),
    }


def classify_request_from_pb(message: classification_pb2.ClassifyRequest) -> ClassifyRequest:
    fields = fields_of(message)
    return ClassifyRequest(**_text_fields(fields), pairs=tuple(message.text_pairs), normalize=fields.get("normalize"))


def classify_response_to_pb(classified: Classified) -> classification_pb2.ClassifyResponse:
    answer, labels = classified.answer, classified.labels
    response = classification_pb2.ClassifyResponse(model=answer.model, labels=labels, usage=usage_to_pb(answer))
    put_floats(response, "scores", answer.result.scores)
    return response


def classify_tokens_request_from_pb(message: classification_pb2.ClassifyTokensRequest) -> ClassifyTokensRequest:
    fields = fields_of(message)
    return ClassifyTokensRequest(
        **_text_fields(fields), token_id=fields.get("token_id"), normalize=fields.get("normalize")
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
    return TokenizeRequest(**_text_fields(fields_of(message)))


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
