"""text-embeddings-inference over HTTP.

Source: its OpenAPI, huggingface.github.io/text-embeddings-inference. What differs is told in docs/tei.md.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from frontend_service.api.http.body import Body
from frontend_service.api.http.dialects.cohere import ranking as cohere
from frontend_service.api.http.dialects.tei import embedding, info, prediction, ranking, tokenization
from frontend_service.api.http.dialects.tei.common import INPUTS, known_as, of_any_name
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
from frontend_service.api.http.reply import FLOAT_WEIGHT, HttpReply, written
from frontend_service.api.http.route import HttpCall, Route, ServeRoute, exchanged
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


def reranks(frontend: Frontend) -> ServeRoute:
    """TEI's bodies have `texts`; those with `documents` are Cohere's, and get its replies."""
    ours = exchanged(
        frontend,
        Body(RerankBody),
        ranking.rerank_request,
        of_any_name(frontend, frontend.ranking.rerank),
        ranking.rerank_reply,
        names_of=lambda _: ranking.NAMES,
    )
    theirs = cohere.reranks(frontend)

    async def serve(call: HttpCall) -> HttpReply:
        given = await frontend.offload(len(call.body), _root.read, call.body)
        return await (theirs if given.documents is not None and given.texts is None else ours)(call)

    return serve


def computes(frontend: Frontend) -> dict[str, ServeRoute]:
    """Paths that ask a worker, and what serves each; the root chooses among the others."""
    embed, classify = frontend.embedding.embed, frontend.classification.texts

    def embeds(takes: Any, output: OutputKind, write: Any, weight: int = FLOAT_WEIGHT) -> ServeRoute:
        def read(body: Any) -> EmbedRequest:
            return embed_request(body, output)

        call_service = of_any_name(frontend, embed)
        return exchanged(frontend, Body(takes), read, call_service, write, weight, embedding.names_of)

    serves = {
        "/embed": embeds(EmbedBody, OutputKind.DENSE, dense_reply),
        "/embed_all": embeds(EmbedAllBody, OutputKind.MULTI_VECTOR, all_reply),
        "/embed_sparse": embeds(EmbedAllBody, OutputKind.SPARSE, sparse_reply, embedding.SPARSE_WEIGHT),
        "/predict": exchanged(
            frontend,
            Body(PredictBody),
            prediction.predict_request,
            of_any_name(frontend, classify),
            prediction.predict_reply,
            FLOAT_WEIGHT,
            prediction.names_of,
        ),
        "/rerank": reranks(frontend),
        "/similarity": exchanged(
            frontend,
            Body(SimilarityBody),
            similarity_request,
            of_any_name(frontend, embed),
            similarity_reply,
            names_of=lambda _: embedding.SIMILAR,
        ),
    }
    return {"/": chooses(frontend, serves), **serves}


def chooses(frontend: Frontend, serves: Mapping[str, ServeRoute]) -> ServeRoute:
    """Serves the root: by what the body holds, and what the model is for."""

    async def serve(call: HttpCall) -> HttpReply:
        given = await frontend.offload(len(call.body), _root.read, call.body)
        if given.query is not None:
            return await serves["/rerank"](call)
        if given.compares:
            return await serves["/similarity"](call)
        card = frontend.models.get(known_as(frontend, given.model or "")).card
        if Task.EMBED not in card.tasks:
            return await serves["/predict"](call)
        return await serves["/embed_sparse" if card.outputs[:1] == (OutputKind.SPARSE,) else "/embed"](call)

    return serve


def tells(frontend: Frontend) -> ServeRoute:
    """GET /info."""

    async def serve(_: HttpCall) -> HttpReply:
        requests = frontend.calls.admission.bounds.requests
        return HttpReply(body=written(info.told(frontend.models.get(""), requests, frontend.threads)))

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
    serves = computes(frontend)
    return [
        *(
            Route(
                method="POST",
                path=path,
                shape=TEI,
                summary=summary,
                takes=takes[0],
                or_takes=takes[1:],
                gives=gives,
                serve=serves[path],
            )
            for path, summary, takes, gives in COMPUTED
        ),
        Route(
            method="POST",
            path="/tokenize",
            shape=TEI,
            summary="The tokens of texts",
            takes=tokenization.TokenizeBody,
            gives=[[{"id": 101, "text": "[CLS]"}]],
            names=INPUTS,
            waits=False,
            serve=tokenization.tokenizes(frontend),
        ),
        Route(
            method="POST",
            path="/decode",
            shape=TEI,
            summary="The texts of ids",
            takes=tokenization.DecodeBody,
            gives=["a text"],
            names=tokenization.NAMES,
            waits=False,
            serve=tokenization.decodes(frontend),
        ),
        Route(
            method="GET",
            path="/info",
            shape=TEI,
            summary="What is served, and its limits",
            gives={"model_id": "all-MiniLM-L6-v2", "max_input_length": 256},
            waits=False,
            serve=tells(frontend),
        ),
    ]
