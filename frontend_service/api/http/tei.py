"""The paths of text-embeddings-inference.

Source: its OpenAPI, huggingface.github.io/text-embeddings-inference. What differs is told in docs/tei.md.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from frontend_service.api.field_names import FieldNames
from frontend_service.api.http.cohere import CohereRerankBody
from frontend_service.api.http.cohere import rerank_endpoint as cohere_rerank_endpoint
from frontend_service.api.http.errors import OPENAI, TEI
from frontend_service.api.http.fields import FILLED, Body, Id, Texts, inputs_of, texts_of
from frontend_service.api.http.replies import FLOAT_WEIGHT, HttpReply, to_json
from frontend_service.api.http.route import Endpoint, ExchangeEndpoint, HttpCall, Route, with_field_names
from frontend_service.api.http.tei_bodies import (
    INPUTS,
    RERANK_NAMES,
    SPARSE_WEIGHT,
    EmbedAllBody,
    EmbedBody,
    PredictBody,
    RerankBody,
    SimilarityBody,
    all_reply,
    dense_reply,
    embed_names,
    embed_request,
    for_any_name,
    info_reply,
    predict_names,
    predict_reply,
    predict_request,
    rerank_reply,
    rerank_request,
    resolved_name,
    similarity_names,
    similarity_reply,
    similarity_request,
    sparse_reply,
)
from frontend_service.api.http.vllm import TokenizePromptBody
from frontend_service.api.http.vllm import tokenize_endpoint as vllm_tokenize_endpoint
from frontend_service.api.http.vllm_fields import input_type_of
from frontend_service.api.tei_v1.messages import UNLIMITED, tei_tokens
from frontend_service.application.frontend import Frontend
from frontend_service.domain.requests import DetokenizeRequest, PromptChoice, TokenizeRequest
from frontend_service.services.models import ShownTexts
from shared.errors import InvalidInput
from shared.vectors import OutputKind, Task

DECODE_NAMES: FieldNames = {"tokenized": "ids"}


class TokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize. `input_type` is a field of ours."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None
    input_type: str | None = None
    model: str = ""


class DecodeBody(msgspec.Struct, kw_only=True):
    """The body of POST /decode: the ids of a text, or a list of such. `input_type` is a field of ours."""

    ids: Annotated[list[Id | list[Id]], FILLED]
    skip_special_tokens: bool = True
    input_type: str | None = None
    model: str = ""


def token_lists(shown: ShownTexts, inputs: tuple[str, ...], *, special: bool) -> list[list[dict[str, Any]]]:
    """The tokens of each text with their places in prompt and text, in bytes. `special`: with special tokens."""
    return [
        [token._asdict() for token in tei_tokens(shown.prompt + text, tokenized, special=special)]
        for text, tokenized in zip(inputs, shown.texts, strict=True)
    ]


def inputs_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint of POST /tokenize with `inputs`."""
    tokenize_body = Body(TokenizeBody)

    async def endpoint(call: HttpCall) -> HttpReply:
        body = await frontend.offload(len(call.body), tokenize_body.read, call.body)
        inputs = texts_of(body.inputs)
        if not inputs:
            raise InvalidInput("inputs is empty", field="inputs")
        request = TokenizeRequest(
            model=resolved_name(frontend, body.model),
            texts=inputs,
            prompt=PromptChoice(name=body.prompt_name, input_type=input_type_of(body.input_type)),
            cut=UNLIMITED,
        )
        shown = await with_field_names(frontend.models.tokenize(request), lambda: INPUTS)
        return await frontend.offload(
            FLOAT_WEIGHT * shown.size,
            lambda shown: HttpReply(body=to_json(token_lists(shown, inputs, special=body.add_special_tokens))),
            shown,
        )

    return endpoint


def decode_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint of POST /decode."""
    decode_body = Body(DecodeBody)

    async def endpoint(call: HttpCall) -> HttpReply:
        body = await frontend.offload(len(call.body), decode_body.read, call.body)
        _, tokenized = inputs_of(body.ids, "ids")  # type: ignore[arg-type]
        request = DetokenizeRequest(
            model=resolved_name(frontend, body.model),
            tokenized=tokenized,
            skip_special_tokens=body.skip_special_tokens,
            input_type=input_type_of(body.input_type),
        )
        detokenized = await with_field_names(frontend.models.detokenize(request), lambda: DECODE_NAMES)
        return HttpReply(body=to_json(detokenized.texts))

    return endpoint


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
        rerank_request,
        for_any_name(frontend, frontend.ranking.rerank),
        rerank_reply,
        names_of=lambda _: RERANK_NAMES,
    )
    return either_endpoint(
        frontend,
        tei,
        cohere_rerank_endpoint(frontend, version),
        lambda body: body.documents is not None and body.texts is None,
    )


def tokenize_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint of /tokenize: bodies with `inputs` are TEI's, those with `prompt` vLLM's."""
    return either_endpoint(
        frontend,
        inputs_endpoint(frontend),
        vllm_tokenize_endpoint(frontend),
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
        "/embed_sparse": _embed_endpoint(frontend, EmbedAllBody, OutputKind.SPARSE, sparse_reply, SPARSE_WEIGHT),
        "/predict": ExchangeEndpoint(
            frontend,
            Body(PredictBody),
            predict_request,
            for_any_name(frontend, frontend.classification.texts),
            predict_reply,
            FLOAT_WEIGHT,
            predict_names,
        ),
        "/rerank": rerank_endpoint(frontend),
        "/similarity": ExchangeEndpoint(
            frontend,
            Body(SimilarityBody),
            similarity_request,
            for_any_name(frontend, frontend.embedding.embed),
            similarity_reply,
            names_of=similarity_names,
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
        embed_names,
    )


def info_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint of GET /info."""

    async def endpoint(_: HttpCall) -> HttpReply:
        requests = frontend.calls.admission.bounds.requests
        return HttpReply(body=to_json(info_reply(frontend.models.get(""), requests, frontend.thread_count)))

    return endpoint


VECTOR, RANKS = [[0.1, -0.2]], [{"index": 1, "score": 0.97}, {"index": 0, "score": 0.02}]
LABELS = [{"score": 0.9, "label": "positive"}]
COHERE_BODIES = (CohereRerankBody,)
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
            body_type=TokenizeBody,
            other_body_types=(TokenizePromptBody,),
            example=[[{"id": 101, "text": "[CLS]"}]],
            needs_worker=False,
            endpoint=tokenize_endpoint(frontend),
        ),
        Route(
            method="POST",
            path="/decode",
            dialect=TEI,
            summary="The texts of ids",
            body_type=DecodeBody,
            example=["a text"],
            needs_worker=False,
            endpoint=decode_endpoint(frontend),
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
