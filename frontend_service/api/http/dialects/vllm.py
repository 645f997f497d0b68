"""vLLM's own paths: /pooling, /score and /classify, each with and without /v1.

Source: docs.vllm.ai, "Pooling models"; vLLM's vllm/entrypoints/pooling.
"""

from typing import Any, ClassVar

from frontend_service.api.http.body import Body, Texts, texts_of
from frontend_service.api.http.dialects.encoding import OCTETS
from frontend_service.api.http.dialects.openai import list_reply
from frontend_service.api.http.dialects.pooling import PoolingBody, PoolingEndpoint, label_scores
from frontend_service.api.http.dialects.pooling_request import Activated, InputRequest
from frontend_service.api.http.dialects.scoring import ScoreBody, score_endpoint
from frontend_service.api.http.errors import OPENAI
from frontend_service.api.http.reply import FLOAT_WEIGHT, HttpReply, each_in_parts
from frontend_service.api.http.route import Endpoint, ExchangeEndpoint, ParsedRequest, Route
from frontend_service.application.frontend import Frontend
from frontend_service.domain.requests import ClassifyRequest
from frontend_service.services.classification import Classified
from shared.errors import InvalidInput


class ClassifyBody(InputRequest, kw_only=True):
    """The body of POST /classify."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("use_activation", "softmax", "activation")

    input: Texts  # type: ignore[assignment]
    softmax: Activated = None
    activation: Activated = None


def classify_request(body: ClassifyBody) -> ClassifyRequest:
    """The request for labels of texts. Raises InvalidInput."""
    texts = texts_of(body.input)
    if not texts:
        raise InvalidInput("input is empty", field="input")
    return ClassifyRequest(model=body.model, texts=texts, cut=body.cut, normalize=body.activated is not False)


def classify_reply(parsed: ParsedRequest[ClassifyBody, ClassifyRequest], classified: Classified) -> HttpReply:
    labels = classified.labels
    data = [
        {
            "index": index,
            "label": labels[best],
            "probs": row,
            "num_classes": len(labels),
        }
        for index, (row, best) in enumerate(zip(label_scores(classified), classified.best_first[:, 0], strict=True))
    ]
    return list_reply(parsed, "classify", classified.answer, each_in_parts(data))


def classify_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint for the labels of texts."""
    return ExchangeEndpoint(
        frontend,
        Body(ClassifyBody),
        classify_request,
        frontend.classification.texts,
        classify_reply,
        FLOAT_WEIGHT,
        lambda body: body.names,
    )


def routes(frontend: Frontend) -> list[Route]:
    """All routes of this dialect."""
    kinds: tuple[tuple[str, Endpoint, Any, str, Any], ...] = (
        (
            "/pooling",
            PoolingEndpoint(frontend),
            PoolingBody,
            "What the model's pooler gives, whatever it is",
            {"data": [0.1]},
        ),
        ("/score", score_endpoint(frontend), ScoreBody, "How well texts fit each other", {"score": 0.9}),
        ("/classify", classify_endpoint(frontend), ClassifyBody, "The label of each text", {"label": "positive"}),
    )
    return [
        Route(
            method="POST",
            path=prefix + path,
            dialect=OPENAI,
            summary=summary,
            body_type=body_type,
            other_content_types=(OCTETS,) if body_type is PoolingBody else (),
            example={"object": "list", "data": [{"index": 0, **example}]},
            endpoint=serve,
        )
        for path, serve, body_type, summary, example in kinds
        for prefix in ("", "/v1")
    ]
