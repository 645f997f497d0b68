"""vLLM's /pooling: whatever the model gives for a text.

Source: vLLM's vllm/entrypoints/pooling/pooling/protocol.py.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from frontend_service.api.http.body import Body, inputs_of
from frontend_service.api.http.dialects.openai import embed_request, vector_list_reply
from frontend_service.api.http.dialects.pooling_request import Activated, VectorRequest
from frontend_service.api.http.refused_fields import refusing
from frontend_service.api.http.reply import FLOAT_WEIGHT, HttpReply, rows_of, split
from frontend_service.api.http.route import Endpoint, ExchangeEndpoint, HttpCall, ParsedRequest
from frontend_service.application.frontend import Frontend
from frontend_service.domain.answer import Answer
from frontend_service.domain.requests import ClassifyRequest, ClassifyTokensRequest, EmbedRequest
from frontend_service.services.classification import Classified
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.vectors import OutputKind, Task

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]


class PoolingBody(VectorRequest, kw_only=True):
    """POST /pooling. Without a `task` the model's own: token vectors before one vector, and labels of a classifier."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = (*VectorRequest.ACTIVATIONS, "softmax", "activation")

    task: PoolingTask | None = None
    softmax: Activated = None
    activation: Activated = None
    data: Annotated[Any, refusing("there are no plugins; send texts as input")] = None


def vectors_reply(asked: ParsedRequest[PoolingBody, EmbedRequest], answer: Answer) -> HttpReply:
    if answer.result.tokens is not None:
        return _pooled(asked, answer, split(rows_of(answer.result.tokens), answer.result.row_lengths))
    return _pooled(asked, answer, list(rows_of(answer.result.dense)))


def _pooled(asked: ParsedRequest[PoolingBody, Any], answer: Answer, arrays: list[Any]) -> HttpReply:
    """`arrays`: one for each input."""
    return vector_list_reply(asked, "pool", answer, arrays, "pooling", "data")


def labels_request(body: PoolingBody) -> ClassifyRequest:
    """Raises InvalidInput."""
    if body.dimensions is not None:
        raise InvalidInput("dimensions are of vectors, and this asks for labels", field="dimensions")
    texts, tokenized = inputs_of(body.input, "input")
    if tokenized:
        raise InvalidInput("input must be texts where labels are asked for", field="input")
    return ClassifyRequest(model=body.model, texts=texts, prompt=body.choice, cut=body.cut, normalize=body.activated)


def token_labels_request(body: PoolingBody) -> ClassifyTokensRequest:
    """Raises InvalidInput."""
    whole = labels_request(body)
    return ClassifyTokensRequest(
        model=whole.model, texts=whole.texts, prompt=whole.prompt, cut=whole.cut, normalize=whole.normalize
    )


def label_scores(classified: Classified) -> Any:
    """float32 [N, labels]."""
    return np.frombuffer(classified.answer.result.scores, dtype="<f4").reshape(-1, len(classified.labels))


def labels_reply(asked: ParsedRequest[PoolingBody, Any], classified: Classified) -> HttpReply:
    rows = label_scores(classified)
    if isinstance(asked.request, ClassifyTokensRequest):
        return _pooled(asked, classified.answer, split(rows, classified.answer.result.row_lengths))
    return _pooled(asked, classified.answer, list(rows))


def task_of(card: ModelCard) -> PoolingTask:
    """The task of a request that names none: what the model is for."""
    if Task.CLASSIFY_TOKENS in card.tasks:
        return "token_classify"
    if Task.CLASSIFY in card.tasks:
        return "classify"
    return "token_embed" if card.outputs[:1] == (OutputKind.MULTI_VECTOR,) else "embed"


class _Choice(msgspec.Struct):
    """Fields that decide how the rest of a body is read."""

    model: str = ""
    task: PoolingTask | None = None


_choice = Body(_Choice)


def PoolingEndpoint(frontend: Frontend) -> Endpoint:
    """Serves each kind of model by what it is for."""
    body = Body(PoolingBody)
    embed, labels = frontend.embedding.embed, frontend.classification

    def served(read: Any, ask: Any, write: Any) -> Endpoint:
        return ExchangeEndpoint(frontend, body, read, ask, write, FLOAT_WEIGHT, lambda body: body.names)

    def vectors(output: OutputKind) -> Endpoint:
        return served(lambda body: embed_request(body, output), embed, vectors_reply)

    kinds: dict[PoolingTask, Endpoint] = {
        "embed": vectors(OutputKind.DENSE),
        "token_embed": vectors(OutputKind.MULTI_VECTOR),
        "classify": served(labels_request, labels.texts, labels_reply),
        "token_classify": served(token_labels_request, labels.tokens, labels_reply),
    }

    async def serve(call: HttpCall) -> HttpReply:
        choice = await frontend.offload(len(call.body), _choice.read, call.body)
        return await kinds[choice.task or task_of(frontend.models.get(choice.model).card)](call)

    return serve
