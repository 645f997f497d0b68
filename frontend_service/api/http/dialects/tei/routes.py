"""text-embeddings-inference over HTTP.

Source: its OpenAPI, huggingface.github.io/text-embeddings-inference. What differs is told in docs/tei.md.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from frontend_service.api.http.body import Body
from frontend_service.api.http.dialects.cohere import ranking as cohere
from frontend_service.api.http.dialects.tei import embedding, info, prediction, ranking, tokenization
from frontend_service.api.http.dialects.tei.common import INPUTS, for_any_name, resolved_name
from frontend_service.api.http.dialects.tei.embedding import (
    EmbedAllBody,
    EmbedBody,
    SimilarityBody,
    all_reply,
    dense_reply,
    embed_request,
    similarity_reply,
    similarity_request,
    sparse_reply,
)
from frontend_service.api.http.dialects.tei.prediction import PredictBody
from frontend_service.api.http.dialects.tei.ranking import RerankBody
from frontend_service.api.http.errors import TEI
from frontend_service.api.http.reply import FLOAT_WEIGHT, HttpReply, to_json
from frontend_service.api.http.route import Endpoint, ExchangeEndpoint, HttpCall, Route
from frontend_service.application.frontend import Frontend
from frontend_service.domain.requests import EmbedRequest
from shared.vectors import OutputKind, Task


class _Root(msgspec.Struct):
    """Fields that tell which of the bodies of POST / it is."""

    query: Any = None
    texts: Any = None
    documents: Any = None
    model: str | None = None
    inputs: msgspec.Raw = msgspec.Raw()

    @property
    def compares(self) -> bool:
        """The body is /similarity's."""
        return memoryview(self.inputs)[:1].tobytes() == b"{"


_root = Body(_Root)


def rerank_endpoint(frontend: Frontend) -> Endpoint:
    """TEI's bodies have `texts`; those with `documents` are Cohere's, and get its replies."""
    ours = ExchangeEndpoint(
        frontend,
        Body(RerankBody),
        ranking.rerank_request,
        for_any_name(frontend, frontend.ranking.rerank),
        ranking.rerank_reply,
        names_of=lambda _: ranking.NAMES,
    )
    theirs = cohere.rerank_endpoint(frontend)

    async def serve(call: HttpCall) -> HttpReply:
        given = await frontend.offload(len(call.body), _root.read, call.body)
        return await (theirs if given.documents is not None and given.texts is None else ours)(call)

    return serve


def computed_endpoints(frontend: Frontend) -> dict[str, Endpoint]:
    """Paths that ask a worker, and what serves each; the root chooses among the others."""
    embed, classify = frontend.embedding.embed, frontend.classification.texts

    def embeds(body_type: Any, output: OutputKind, write: Any, weight: int = FLOAT_WEIGHT) -> Endpoint:
        def read(body: Any) -> EmbedRequest:
            return embed_request(body, output)

        ask = for_any_name(frontend, embed)
        return ExchangeEndpoint(frontend, Body(body_type), read, ask, write, weight, embedding.names_of)

    serves = {
        "/embed": embeds(EmbedBody, OutputKind.DENSE, dense_reply),
        "/embed_all": embeds(EmbedAllBody, OutputKind.MULTI_VECTOR, all_reply),
        "/embed_sparse": embeds(EmbedAllBody, OutputKind.SPARSE, sparse_reply, embedding.SPARSE_WEIGHT),
        "/predict": ExchangeEndpoint(
            frontend,
            Body(PredictBody),
            prediction.predict_request,
            for_any_name(frontend, classify),
            prediction.predict_reply,
            FLOAT_WEIGHT,
            prediction.names_of,
        ),
        "/rerank": rerank_endpoint(frontend),
        "/similarity": ExchangeEndpoint(
            frontend,
            Body(SimilarityBody),
            similarity_request,
            for_any_name(frontend, embed),
            similarity_reply,
            names_of=lambda _: embedding.SIMILAR,
        ),
    }
    return {"/": root_endpoint(frontend, serves), **serves}


def root_endpoint(frontend: Frontend, serves: Mapping[str, Endpoint]) -> Endpoint:
    """Serves the root: by what the body holds, and what the model is for."""

    async def serve(call: HttpCall) -> HttpReply:
        given = await frontend.offload(len(call.body), _root.read, call.body)
        if given.query is not None:
            return await serves["/rerank"](call)
        if given.compares:
            return await serves["/similarity"](call)
        card = frontend.models.get(resolved_name(frontend, given.model or "")).card
        if Task.EMBED not in card.tasks:
            return await serves["/predict"](call)
        return await serves["/embed_sparse" if card.outputs[:1] == (OutputKind.SPARSE,) else "/embed"](call)

    return serve


def info_endpoint(frontend: Frontend) -> Endpoint:
    """GET /info."""

    async def serve(_: HttpCall) -> HttpReply:
        requests = frontend.calls.admission.bounds.requests
        return HttpReply(body=to_json(info.info_reply(frontend.models.get(""), requests, frontend.threads)))

    return serve


VECTOR, RANKS = [[0.1, -0.2]], [{"index": 1, "score": 0.97}, {"index": 0, "score": 0.02}]
LABELS = [{"score": 0.9, "label": "positive"}]
COHERES = (cohere.CohereRerankBody,)
COMPUTED: tuple[tuple[str, str, tuple[Any, ...], Any], ...] = (
    (
        "/",
        "/embed, /predict, /rerank or /similarity, by the body and the model",
        (EmbedBody, PredictBody, RerankBody, *COHERES, SimilarityBody),
        VECTOR,
    ),
    ("/embed", "A vector for each input", (EmbedBody,), VECTOR),
    ("/embed_all", "A vector for each token of each input", (EmbedAllBody,), [VECTOR]),
    ("/embed_sparse", "Weights of words", (EmbedAllBody,), [[{"index": 7, "value": 0.5}]]),
    ("/predict", "Labels of texts or pairs, best first", (PredictBody,), LABELS),
    ("/rerank", "Texts in the order in which they fit a query", (RerankBody, *COHERES), RANKS),
    ("/similarity", "Cosines of one text with others", (SimilarityBody,), [0.7]),
)
"""Paths that ask a worker: what they are for, which bodies they take, and what a reply looks like."""


def routes(frontend: Frontend) -> list[Route]:
    """All routes of this shape."""
    serves = computed_endpoints(frontend)
    return [
        *(
            Route(
                method="POST",
                path=path,
                dialect=TEI,
                summary=summary,
                body_type=body_type[0],
                other_body_types=body_type[1:],
                example=example,
                serve=serves[path],
            )
            for path, summary, body_type, example in COMPUTED
        ),
        Route(
            method="POST",
            path="/tokenize",
            dialect=TEI,
            summary="The tokens of texts",
            body_type=tokenization.TokenizeBody,
            example=[[{"id": 101, "text": "[CLS]"}]],
            names=INPUTS,
            needs_worker=False,
            serve=tokenization.tokenize_endpoint(frontend),
        ),
        Route(
            method="POST",
            path="/decode",
            dialect=TEI,
            summary="The texts of ids",
            body_type=tokenization.DecodeBody,
            example=["a text"],
            names=tokenization.NAMES,
            needs_worker=False,
            serve=tokenization.decode_endpoint(frontend),
        ),
        Route(
            method="GET",
            path="/info",
            dialect=TEI,
            summary="What is served, and its limits",
            example={"model_id": "all-MiniLM-L6-v2", "max_input_length": 256},
            needs_worker=False,
            serve=info_endpoint(frontend),
        ),
    ]
