"""The routes of text-embeddings-inference.

Source: its OpenAPI, huggingface.github.io/text-embeddings-inference. What differs is told in docs/tei.md.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from frontend_service.api.http.body import Body
from frontend_service.api.http.dialects import vllm
from frontend_service.api.http.dialects.cohere import ranking as cohere
from frontend_service.api.http.dialects.tei import embedding, info, prediction, ranking, tokenization
from frontend_service.api.http.dialects.tei.common import for_any_name, resolved_name
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
from frontend_service.api.http.errors import OPENAI, TEI
from frontend_service.api.http.reply import FLOAT_WEIGHT, HttpReply, to_json
from frontend_service.api.http.route import Endpoint, ExchangeEndpoint, HttpCall, Route
from frontend_service.application.frontend import Frontend
from shared.vectors import OutputKind, Task


class _Root(msgspec.Struct):
    """Fields that tell bodies of one path apart."""

    query: Any = None
    texts: Any = None
    documents: Any = None
    prompt: Any = None
    messages: Any = None
    model: str | None = None
    inputs: msgspec.Raw = msgspec.Raw()

    @property
    def has_inputs(self) -> bool:
        """The body has the field, whatever is in it."""
        return bool(memoryview(self.inputs).nbytes)

    @property
    def compares(self) -> bool:
        """The body is that of /similarity."""
        return memoryview(self.inputs)[:1].tobytes() == b"{"


_root = Body(_Root, whole=False)


def either_endpoint(frontend: Frontend, tei: Endpoint, other: Endpoint, is_other: Callable[[_Root], bool]) -> Endpoint:
    """Makes an endpoint of two: that of this dialect, and that of another one, whose bodies `is_other` knows."""

    async def endpoint(call: HttpCall) -> HttpReply:
        body = await frontend.offload(len(call.body), _root.read, call.body)
        return await (other if is_other(body) else tei)(call)

    return endpoint


def rerank_endpoint(frontend: Frontend, version: str = "2") -> Endpoint:
    """Makes the endpoint of /rerank: bodies with `texts` are TEI's, those with `documents` get the replies of Cohere.

    `version`: that of Cohere's API.
    """
    tei: Endpoint = ExchangeEndpoint(
        frontend,
        Body(RerankBody),
        ranking.rerank_request,
        for_any_name(frontend, frontend.ranking.rerank),
        ranking.rerank_reply,
        names_of=lambda _: ranking.NAMES,
    )
    return either_endpoint(
        frontend,
        tei,
        cohere.rerank_endpoint(frontend, version),
        lambda body: body.documents is not None and body.texts is None,
    )


def tokenize_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint of /tokenize: bodies with `inputs` are TEI's, those with `prompt` vLLM's."""
    return either_endpoint(
        frontend,
        tokenization.tokenize_endpoint(frontend),
        vllm.tokenize_endpoint(frontend),
        lambda body: not body.has_inputs and (body.prompt is not None or body.messages is not None),
    )


class RootEndpoint:
    """The endpoint of the root, which passes each call to another endpoint by its body and its model."""

    def __init__(self, frontend: Frontend, endpoints: Mapping[str, Endpoint]) -> None:
        """`endpoints`: those of the other paths."""
        self._frontend, self._endpoints = frontend, endpoints

    async def __call__(self, call: HttpCall) -> HttpReply:
        body = await self._frontend.offload(len(call.body), _root.read, call.body)
        return await self._endpoints[self._path(body)](call)

    def _path(self, body: _Root) -> str:
        if body.query is not None:
            return "/rerank"
        if body.compares:
            return "/similarity"
        card = self._frontend.models.get(resolved_name(self._frontend, body.model or "")).card
        if Task.EMBED not in card.tasks:
            return "/predict"
        return "/embed_sparse" if card.outputs[:1] == (OutputKind.SPARSE,) else "/embed"


def model_endpoints(frontend: Frontend) -> dict[str, Endpoint]:
    """The endpoints that ask a worker, by path."""
    endpoints: dict[str, Endpoint] = {
        "/embed": _embed_endpoint(frontend, EmbedBody, OutputKind.DENSE, dense_reply),
        "/embed_all": _embed_endpoint(frontend, EmbedAllBody, OutputKind.MULTI_VECTOR, all_reply),
        "/embed_sparse": _embed_endpoint(
            frontend, EmbedAllBody, OutputKind.SPARSE, sparse_reply, embedding.SPARSE_WEIGHT
        ),
        "/predict": ExchangeEndpoint(
            frontend,
            Body(PredictBody),
            prediction.predict_request,
            for_any_name(frontend, frontend.classification.texts),
            prediction.predict_reply,
            FLOAT_WEIGHT,
            prediction.names_of,
        ),
        "/rerank": rerank_endpoint(frontend),
        "/similarity": ExchangeEndpoint(
            frontend,
            Body(SimilarityBody),
            similarity_request,
            for_any_name(frontend, frontend.embedding.embed),
            similarity_reply,
            names_of=embedding.similarity_names,
        ),
    }
    return {"/": RootEndpoint(frontend, endpoints), "/reranking": endpoints["/rerank"], **endpoints}


def _embed_endpoint(
    frontend: Frontend, body_type: Any, output: OutputKind, write: Any, weight: int = FLOAT_WEIGHT
) -> Endpoint:
    """Makes an endpoint for one output of an embedding model."""
    return ExchangeEndpoint(
        frontend,
        Body(body_type),
        lambda body: embed_request(body, output),
        for_any_name(frontend, frontend.embedding.embed),
        write,
        weight,
        embedding.names_of,
    )


def info_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint of GET /info."""

    async def endpoint(_: HttpCall) -> HttpReply:
        requests = frontend.calls.admission.bounds.requests
        return HttpReply(body=to_json(info.info_reply(frontend.models.get(""), requests, frontend.thread_count)))

    return endpoint


VECTOR, RANKS = [[0.1, -0.2]], [{"index": 1, "score": 0.97}, {"index": 0, "score": 0.02}]
LABELS = [{"score": 0.9, "label": "positive"}]
COHERE_BODIES = (cohere.CohereRerankBody,)
MODEL_PATHS: tuple[tuple[str, str, tuple[Any, ...], Any], ...] = (
    (
        "/",
        "/embed, /predict, /rerank or /similarity, by the body and the model",
        (EmbedBody, PredictBody, RerankBody, *COHERE_BODIES, SimilarityBody),
        VECTOR,
    ),
    ("/embed", "A vector for each input", (EmbedBody,), VECTOR),
    ("/embed_all", "A vector for each token of each input", (EmbedAllBody,), [VECTOR]),
    ("/embed_sparse", "Weights of words", (EmbedAllBody,), [[{"index": 7, "value": 0.5}]]),
    ("/predict", "Labels of texts or pairs, best first", (PredictBody,), LABELS),
    ("/rerank", "Texts in the order in which they fit a query", (RerankBody, *COHERE_BODIES), RANKS),
    ("/reranking", "The same as /rerank, as llama.cpp has it", (RerankBody, *COHERE_BODIES), RANKS),
    ("/similarity", "Cosines of one text with others", (SimilarityBody,), [0.7]),
)
"""Paths that ask a worker, each with its summary, its bodies and an example of a reply."""


def routes(frontend: Frontend) -> list[Route]:
    """All routes of this dialect."""
    endpoints = model_endpoints(frontend)
    return [
        *(
            Route(
                method="POST",
                path=path,
                dialect=TEI,
                summary=summary,
                body_type=body_types[0],
                other_body_types=body_types[1:],
                example=example,
                endpoint=endpoints[path],
            )
            for path, summary, body_types, example in MODEL_PATHS
        ),
        Route(
            method="POST",
            path="/v1/reranking",
            dialect=OPENAI,
            summary="Documents in the order in which they fit a query, as llama.cpp has it",
            body_type=COHERE_BODIES[0],
            other_body_types=(RerankBody,),
            example={"results": [{"index": 1, "relevance_score": 0.97}]},
            endpoint=rerank_endpoint(frontend, "1"),
        ),
        Route(
            method="POST",
            path="/tokenize",
            dialect=TEI,
            summary="The tokens of texts",
            body_type=tokenization.TokenizeBody,
            other_body_types=(vllm.TokenizePromptBody,),
            example=[[{"id": 101, "text": "[CLS]"}]],
            needs_worker=False,
            endpoint=tokenize_endpoint(frontend),
        ),
        Route(
            method="POST",
            path="/decode",
            dialect=TEI,
            summary="The texts of ids",
            body_type=tokenization.DecodeBody,
            example=["a text"],
            needs_worker=False,
            endpoint=tokenization.decode_endpoint(frontend),
        ),
        Route(
            method="GET",
            path="/info",
            dialect=TEI,
            summary="What is served, and its limits",
            example={"model_id": "all-MiniLM-L6-v2", "max_input_length": 256},
            needs_worker=False,
            endpoint=info_endpoint(frontend),
        ),
    ]
