"""The paths of text-embeddings-inference.

Source: its OpenAPI, huggingface.github.io/text-embeddings-inference. What differs is told in docs/tei.md.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec

from frontend_service.api.http import cohere, vllm
from frontend_service.api.http.cohere import CohereRerankBody
from frontend_service.api.http.error_replies import OPENAI, TEI
from frontend_service.api.http.fields import FILLED, Body, Id, Texts, inputs_of, texts_of
from frontend_service.api.http.routes import FLOAT_WEIGHT, HttpCall, HttpReply, Route, to_json
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
    info_reply,
    predict_names,
    predict_reply,
    predict_request,
    rerank_reply,
    rerank_request,
    similarity_names,
    similarity_reply,
    similarity_request,
    sparse_reply,
)
from frontend_service.api.http.vllm import TokenizePromptBody
from frontend_service.api.http.vllm_fields import input_type_of
from frontend_service.api.tei_v1.messages import UNLIMITED, tei_tokens
from frontend_service.domain.requests import (
    ClassifyRequest,
    DetokenizeRequest,
    EmbedRequest,
    FieldNames,
    PromptChoice,
    RerankRequest,
    TokenizeRequest,
)
from frontend_service.frontend import Frontend
from frontend_service.services.models import ShownTexts
from frontend_service.services.pipeline import Answer
from shared.caller import RequestTerms
from shared.errors import InvalidInput, UnknownModel
from shared.vectors import OutputKind, Task

A = TypeVar("A")
B = TypeVar("B", bound=msgspec.Struct)
R = TypeVar("R", EmbedRequest, ClassifyRequest, RerankRequest, TokenizeRequest, DetokenizeRequest)
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


def token_lists(shown: ShownTexts, *, special: bool) -> list[list[dict[str, Any]]]:
    """The tokens of each text with their places in what was tokenised, in bytes. `special`: with special tokens."""
    return [[token._asdict() for token in tei_tokens(text, special=special)] for text in shown.texts]


def resolved(frontend: Frontend, request: R) -> R:
    """The request without a model's name where only one is served and no model has that name. Raises
    WorkerUnavailable."""
    if any(request.model in card.names for card in frontend.models.cards()):
        return request
    try:
        frontend.models.get("")
    except UnknownModel:
        return request
    return replace(request, model="")


async def _ask(
    call: HttpCall,
    serve: Callable[[R, RequestTerms], Awaitable[A]],
    read: Callable[[B], R],
    body: B,
    names: Callable[[], FieldNames],
) -> A:
    """Has a service answer. A single model answers to any name that no other has, as the original reads no name."""

    def serve_only(request: R, terms: RequestTerms) -> Awaitable[A]:
        return serve(resolved(call.frontend, request), terms)

    return await call.ask(serve_only, read, body, names)


TOKENIZE, DECODE = Body(TokenizeBody), Body(DecodeBody)


def tokenize_request(body: TokenizeBody) -> TokenizeRequest:
    """The request for the tokens of texts. Raises InvalidInput."""
    inputs = texts_of(body.inputs)
    if not inputs:
        raise InvalidInput("inputs is empty", field="inputs")
    choice = PromptChoice(name=body.prompt_name, input_type=input_type_of(body.input_type))
    return TokenizeRequest(model=body.model, texts=inputs, prompt=choice, cut=UNLIMITED)


async def tokenize(call: HttpCall) -> HttpReply:
    """Answers POST /tokenize: bodies with `inputs` are TEI's, those with `prompt` vLLM's."""
    root, frontend = await call.read(ROOT), call.frontend
    if not root.has_inputs and (root.prompt is not None or root.messages is not None):
        return await vllm.tokenize(call)
    body = await call.read(TOKENIZE)
    shown = await _ask(
        call, lambda request, _: frontend.models.tokenize(request), tokenize_request, body, lambda: INPUTS
    )

    def write(shown: ShownTexts) -> HttpReply:
        return HttpReply(body=to_json(token_lists(shown, special=body.add_special_tokens)))

    return await frontend.pipeline.offload(FLOAT_WEIGHT * shown.size, write, shown)


def decode_request(body: DecodeBody) -> DetokenizeRequest:
    """The request for the texts of ids. Raises InvalidInput."""
    _, tokenized = inputs_of(body.ids, "ids")  # type: ignore[arg-type]
    return DetokenizeRequest(
        model=body.model,
        tokenized=tokenized,
        skip_special_tokens=body.skip_special_tokens,
        input_type=input_type_of(body.input_type),
    )


async def decode(call: HttpCall) -> HttpReply:
    """Answers POST /decode."""
    frontend, body = call.frontend, await call.read(DECODE)
    detokenized = await _ask(
        call, lambda request, _: frontend.models.detokenize(request), decode_request, body, lambda: DECODE_NAMES
    )
    return await frontend.pipeline.offload(
        detokenized.size, lambda texts: HttpReply(body=to_json(texts)), detokenized.texts
    )


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


ROOT = Body(_Root, whole=False)
EMBED, EMBED_ALL, SIMILARITY = Body(EmbedBody), Body(EmbedAllBody), Body(SimilarityBody)
PREDICT, RERANK = Body(PredictBody), Body(RerankBody)


async def embed(call: HttpCall) -> HttpReply:
    """Answers POST /embed."""
    body = await call.read(EMBED)
    return await _embed(call, body, OutputKind.DENSE, dense_reply)


async def embed_all(call: HttpCall) -> HttpReply:
    """Answers POST /embed_all."""
    body = await call.read(EMBED_ALL)
    return await _embed(call, body, OutputKind.MULTI_VECTOR, all_reply)


async def embed_sparse(call: HttpCall) -> HttpReply:
    """Answers POST /embed_sparse."""
    body = await call.read(EMBED_ALL)
    return await _embed(call, body, OutputKind.SPARSE, sparse_reply, SPARSE_WEIGHT)


async def _embed(
    call: HttpCall,
    body: EmbedBody | EmbedAllBody,
    output: OutputKind,
    write: Callable[[Answer], HttpReply],
    weight: int = FLOAT_WEIGHT,
) -> HttpReply:
    """One output of an embedding model. A byte of it takes `weight` times longer to write than to copy."""
    read = partial(embed_request, output=output)
    answer = await _ask(call, call.frontend.embedding.embed, read, body, lambda: embed_names(body))
    return await call.reply(answer, weight * answer.size, partial(write, answer))


async def similarity(call: HttpCall) -> HttpReply:
    """Answers POST /similarity."""
    body = await call.read(SIMILARITY)
    serve = call.frontend.embedding.embed
    answer = await _ask(call, serve, similarity_request, body, lambda: similarity_names(body))
    return await call.reply(answer, answer.size, partial(similarity_reply, answer))


async def predict(call: HttpCall) -> HttpReply:
    """Answers POST /predict."""
    body = await call.read(PREDICT)
    serve = call.frontend.classification.texts
    classified = await _ask(call, serve, predict_request, body, lambda: predict_names(body))
    answer = classified.answer
    return await call.reply(answer, FLOAT_WEIGHT * answer.size, partial(predict_reply, body, classified))


async def rerank(version: str, call: HttpCall) -> HttpReply:
    """Answers POST /rerank: bodies with `texts` are TEI's, with `documents` they get a reply of Cohere's API."""
    root = await call.read(ROOT)
    if root.documents is not None and root.texts is None:
        return await cohere.rerank(version, call)
    body = await call.read(RERANK)
    reranked = await _ask(call, call.frontend.ranking.rerank, rerank_request, body, lambda: RERANK_NAMES)
    return await call.reply(reranked.answer, reranked.size, partial(rerank_reply, body, reranked))


async def root(call: HttpCall) -> HttpReply:
    """Answers POST /, which is another path by the body and the model."""
    body = await call.read(ROOT)
    if body.query is not None:
        return await rerank("2", call)
    if body.compares:
        return await similarity(call)
    models = call.frontend.models
    try:
        card = models.get("").card
    except UnknownModel:
        card = models.get(body.model or "").card
    if Task.EMBED not in card.tasks:
        return await predict(call)
    return await (embed_sparse if card.outputs[:1] == (OutputKind.SPARSE,) else embed)(call)


async def info(call: HttpCall) -> HttpReply:
    """Answers GET /info."""
    frontend = call.frontend
    requests = frontend.calls.admission.bounds.requests
    return HttpReply(
        body=to_json(info_reply(frontend.models.get(""), frontend.limits, requests, frontend.thread_count))
    )


VECTOR, RANKS = [[0.1, -0.2]], [{"index": 1, "score": 0.97}, {"index": 0, "score": 0.02}]
LABELS = [{"score": 0.9, "label": "positive"}]
COHERE_BODIES = (CohereRerankBody,)
ROUTES = (
    *(
        Route(
            method="POST",
            path=path,
            dialect=TEI,
            summary=summary,
            body_type=body_types[0],
            other_body_types=body_types[1:],
            example=example,
            endpoint=endpoint,
        )
        for path, endpoint, summary, body_types, example in (
            (
                "/",
                root,
                "/embed, /predict, /rerank or /similarity, by the body and the model",
                (EmbedBody, PredictBody, RerankBody, *COHERE_BODIES, SimilarityBody),
                VECTOR,
            ),
            ("/embed", embed, "A vector for each input", (EmbedBody,), VECTOR),
            ("/embed_all", embed_all, "A vector for each token of each input", (EmbedAllBody,), [VECTOR]),
            ("/embed_sparse", embed_sparse, "Weights of words", (EmbedAllBody,), [[{"index": 7, "value": 0.5}]]),
            ("/predict", predict, "Labels of texts or pairs, best first", (PredictBody,), LABELS),
            (
                "/rerank",
                partial(rerank, "2"),
                "Texts in the order in which they fit a query",
                (RerankBody, *COHERE_BODIES),
                RANKS,
            ),
            (
                "/reranking",
                partial(rerank, "2"),
                "The same as /rerank, as llama.cpp has it",
                (RerankBody, *COHERE_BODIES),
                RANKS,
            ),
            ("/similarity", similarity, "Cosines of one text with others", (SimilarityBody,), [0.7]),
        )
    ),
    Route(
        method="POST",
        path="/v1/reranking",
        dialect=OPENAI,
        summary="Documents in the order in which they fit a query, as llama.cpp has it",
        body_type=COHERE_BODIES[0],
        other_body_types=(RerankBody,),
        example={"results": [{"index": 1, "relevance_score": 0.97}]},
        endpoint=partial(rerank, "1"),
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
        endpoint=tokenize,
    ),
    Route(
        method="POST",
        path="/decode",
        dialect=TEI,
        summary="The texts of ids",
        body_type=DecodeBody,
        example=["a text"],
        needs_worker=False,
        endpoint=decode,
    ),
    Route(
        method="GET",
        path="/info",
        dialect=TEI,
        summary="What is served, and its limits",
        example={"model_id": "all-MiniLM-L6-v2", "max_input_length": 256},
        needs_worker=False,
        endpoint=info,
    ),
)
