"""vLLM's /pooling: the main output of a model, whatever that is.

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
from frontend_service.services.classify import Classified
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.vectors import OutputKind, Task

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]


class PoolingBody(VectorRequest, kw_only=True):
    """The body of POST /pooling.

    Without a `task` the model's own: token vectors before one vector, and labels of a classifier.
    """

    ACTIVATIONS: ClassVar[tuple[str, ...]] = (*VectorRequest.ACTIVATIONS, "softmax", "activation")

    task: PoolingTask | None = None
    softmax: Activated = None
    activation: Activated = None
    data: Annotated[Any, refusing("there are no plugins; send texts as input")] = None


def vectors_reply(parsed: ParsedRequest[PoolingBody, EmbedRequest], answer: Answer) -> HttpReply:
    if answer.result.tokens is not None:
        return _pooled_reply(parsed, answer, split(rows_of(answer.result.tokens), answer.result.row_lengths))
    return _pooled_reply(parsed, answer, list(rows_of(answer.result.dense)))


def _pooled_reply(parsed: ParsedRequest[PoolingBody, Any], answer: Answer, arrays: list[Any]) -> HttpReply:
    """A reply of one array for each input."""
    return vector_list_reply(parsed, "pool", answer, arrays, "pooling", "data")


def labels_request(body: PoolingBody) -> ClassifyRequest:
    """The request for labels of texts. Raises InvalidInput."""
    if body.dimensions is not None:
        raise InvalidInput("dimensions are of vectors, and this asks for labels", field="dimensions")
    texts, tokenized = inputs_of(body.input, "input")
    if tokenized:
        raise InvalidInput("input must be texts where labels are asked for", field="input")
    return ClassifyRequest(model=body.model, texts=texts, prompt=body.choice, cut=body.cut, normalize=body.activated)


def token_labels_request(body: PoolingBody) -> ClassifyTokensRequest:
    """The request for labels of tokens. Raises InvalidInput."""
    request = labels_request(body)
    return ClassifyTokensRequest(
        model=request.model, texts=request.texts, prompt=request.prompt, cut=request.cut, normalize=request.normalize
    )


def label_scores(classified: Classified) -> Any:
    """Scores as an array, float32 [N, labels]."""
    return np.frombuffer(classified.answer.result.scores, dtype="<f4").reshape(-1, len(classified.labels))


def labels_reply(parsed: ParsedRequest[PoolingBody, Any], classified: Classified) -> HttpReply:
    rows = label_scores(classified)
    if isinstance(parsed.request, ClassifyTokensRequest):
        return _pooled_reply(parsed, classified.answer, split(rows, classified.answer.result.row_lengths))
    return _pooled_reply(parsed, classified.answer, list(rows))


def task_of(card: ModelCard) -> PoolingTask:
    """The main task of a model, for requests without a task."""
    if Task.CLASSIFY_TOKENS in card.tasks:
        return "token_classify"
    if Task.CLASSIFY in card.tasks:
        return "classify"
    return "token_embed" if card.outputs[:1] == (OutputKind.MULTI_VECTOR,) else "embed"


class _TaskChoice(msgspec.Struct):
    """Fields that choose the endpoint of a task."""

    model: str = ""
    task: PoolingTask | None = None


_task_choice = Body(_TaskChoice, whole=False)


class PoolingEndpoint:
    """The endpoint of /pooling, which passes each call to the endpoint of its task."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend, self._body = frontend, Body(PoolingBody)
        classification = frontend.classification
        self._endpoints: dict[PoolingTask, Endpoint] = {
            "embed": self._vectors(OutputKind.DENSE),
            "token_embed": self._vectors(OutputKind.MULTI_VECTOR),
            "classify": self._exchange(labels_request, classification.texts, labels_reply),
            "token_classify": self._exchange(token_labels_request, classification.tokens, labels_reply),
        }

    async def __call__(self, call: HttpCall) -> HttpReply:
        """Answers a call by its task, or by the main task of its model."""
        choice = await self._frontend.offload(len(call.body), _task_choice.read, call.body)
        task = choice.task or task_of(self._frontend.models.get(choice.model).card)
        return await self._endpoints[task](call)

    def _vectors(self, output: OutputKind) -> Endpoint:
        return self._exchange(lambda body: embed_request(body, output), self._frontend.embedding.embed, vectors_reply)

    def _exchange(self, read: Any, call_service: Any, write: Any) -> Endpoint:
        return ExchangeEndpoint(
            self._frontend, self._body, read, call_service, write, FLOAT_WEIGHT, lambda body: body.names
        )
