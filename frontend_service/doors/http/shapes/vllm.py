"""vLLM's own: /pooling, /score and /classify, each with and without /v1.

Source: docs.vllm.ai, "Pooling models".
"""

from typing import Any, Literal

import msgspec
import numpy as np

from frontend_service.answer import Answer
from frontend_service.classification import Classified
from frontend_service.doors.http.body import Body, Texts, texts_of
from frontend_service.doors.http.errors import OPENAI
from frontend_service.doors.http.reply import FLOAT_WEIGHT, Reply, rows_of, split
from frontend_service.doors.http.route import Asked, Call, Route, Serve, exchanged
from frontend_service.doors.http.shapes.openai import (
    INPUT,
    Given,
    Truncation,
    cut_of,
    embed_request,
    encoded,
    listed,
)
from frontend_service.doors.renaming import Names
from frontend_service.frontend import Frontend
from frontend_service.ranking_requests import ScoreRequest
from frontend_service.requests import ClassifyRequest, ClassifyTokensRequest, Cut, EmbedRequest, PromptChoice
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.vectors import Layout, OutputKind, Task

SCORED: Names = ((r"\bqueries\b", "text_1"), (r"\bdocuments\b", "text_2"))

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]


class PoolingBody(Given, kw_only=True):
    """POST /pooling. Without a `task` the model's own: token vectors before one vector, and labels of a classifier."""

    task: PoolingTask | None = None


class ScoreBody(msgspec.Struct, kw_only=True):
    """POST /score: one text with each of many, or pairs."""

    text_1: Texts
    text_2: Texts
    model: str = ""
    truncate_prompt_tokens: Truncation | None = None
    instruction: str | None = None


class ClassifyBody(msgspec.Struct, kw_only=True):
    """POST /classify."""

    input: Texts
    model: str = ""
    truncate_prompt_tokens: Truncation | None = None


def score_request(body: ScoreBody) -> ScoreRequest:
    first, second = texts_of(body.text_1), texts_of(body.text_2)
    cut = cut_of(body.truncate_prompt_tokens)
    return ScoreRequest(
        model=body.model,
        queries=first,
        documents=second,
        layout=Layout.MATRIX if len(first) == 1 else Layout.PAIRS,
        instruction=body.instruction,
        query_cut=Cut(truncate=cut.truncate, field="truncate_prompt_tokens"),
        document_cut=cut,
        activated=True,
    )


def score_reply(asked: Asked[ScoreBody, ScoreRequest], answer: Answer) -> Reply:
    scores = np.frombuffer(answer.result.scores, dtype="<f4").tolist()
    data = [{"object": "score", "index": index, "score": score} for index, score in enumerate(scores)]
    return listed(asked, "score", answer, data)


def classify_request(body: ClassifyBody) -> ClassifyRequest:
    return ClassifyRequest(
        model=body.model, texts=_inputs(body.input), cut=cut_of(body.truncate_prompt_tokens), normalize=True
    )


def _inputs(given: str | list[str]) -> tuple[str, ...]:
    texts = texts_of(given)
    if not texts:
        raise InvalidInput("input is empty", field="input")
    return texts


def classify_reply(asked: Asked[ClassifyBody, ClassifyRequest], classified: Classified) -> Reply:
    labels = classified.labels
    data = [
        {
            "index": index,
            "label": labels[int(row.argmax())],
            "probs": row,
            "num_classes": len(labels),
        }
        for index, row in enumerate(_by_label(classified))
    ]
    return listed(asked, "classify", classified.answer, data)


def _by_label(classified: Classified) -> Any:
    """float32 [N, labels]."""
    return np.frombuffer(classified.answer.result.scores, dtype="<f4").reshape(-1, len(classified.labels))


def pooled(asked: Asked[PoolingBody, Any], answer: Answer, each: Any) -> Reply:
    """`each`: an array for each input."""
    encoding = asked.body.encoding_format
    data = [{"object": "pooling", "index": index, "data": encoded(rows, encoding)} for index, rows in enumerate(each)]
    return listed(asked, "pool", answer, data)


def vectors_reply(asked: Asked[PoolingBody, EmbedRequest], answer: Answer) -> Reply:
    if answer.result.tokens is not None:
        return pooled(asked, answer, split(rows_of(answer.result.tokens), answer.result.row_lengths))
    return pooled(asked, answer, rows_of(answer.result.dense))


def labels_request(body: PoolingBody) -> ClassifyRequest:
    return ClassifyRequest(
        model=body.model,
        texts=_texts(body),
        prompt=PromptChoice(literal=body.prompt, name=body.prompt_name),
        cut=cut_of(body.truncate_prompt_tokens),
        normalize=body.normalize,
    )


def token_labels_request(body: PoolingBody) -> ClassifyTokensRequest:
    whole = labels_request(body)
    return ClassifyTokensRequest(
        model=whole.model, texts=whole.texts, prompt=whole.prompt, cut=whole.cut, normalize=whole.normalize
    )


def _texts(body: PoolingBody) -> tuple[str, ...]:
    if isinstance(body.input, list) and not all(isinstance(each, str) for each in body.input):
        raise InvalidInput("input must be texts where labels are asked for", field="input")
    return _inputs(body.input)  # type: ignore[arg-type]


def labels_reply(asked: Asked[PoolingBody, Any], classified: Classified) -> Reply:
    rows = _by_label(classified)
    if isinstance(asked.request, ClassifyTokensRequest):
        return pooled(asked, classified.answer, split(rows, classified.answer.result.row_lengths))
    return pooled(asked, classified.answer, rows)


def task_of(card: ModelCard) -> PoolingTask:
    """What a model is asked for that was not told."""
    if Task.CLASSIFY_TOKENS in card.tasks:
        return "token_classify"
    if Task.CLASSIFY in card.tasks:
        return "classify"
    return "token_embed" if card.outputs[:1] == (OutputKind.MULTI_VECTOR,) else "embed"


def pooling(frontend: Frontend) -> Serve:
    """By what the model is for."""
    body = Body(PoolingBody)
    embed, labels = frontend.embedding.embed, frontend.classification
    kinds: dict[PoolingTask, Serve] = {
        "embed": exchanged(
            frontend, body, lambda body: embed_request(body, OutputKind.DENSE), embed, vectors_reply, FLOAT_WEIGHT
        ),
        "token_embed": exchanged(
            frontend,
            body,
            lambda body: embed_request(body, OutputKind.MULTI_VECTOR),
            embed,
            vectors_reply,
            FLOAT_WEIGHT,
        ),
        "classify": exchanged(frontend, body, labels_request, labels.texts, labels_reply, FLOAT_WEIGHT),
        "token_classify": exchanged(frontend, body, token_labels_request, labels.tokens, labels_reply, FLOAT_WEIGHT),
    }

    async def serve(call: Call) -> Reply:
        given = await frontend.offload(len(call.body), _choice.read, call.body)
        return await kinds[given.task or task_of(frontend.models.get(given.model).card)](call)

    return serve


class _Choice(msgspec.Struct):
    """What decides how the rest of a body is read."""

    model: str = ""
    task: PoolingTask | None = None


_choice = Body(_Choice)


def routes(frontend: Frontend) -> list[Route]:
    """All of this shape."""
    score = exchanged(frontend, Body(ScoreBody), score_request, frontend.ranking.score, score_reply)
    classify = exchanged(
        frontend, Body(ClassifyBody), classify_request, frontend.classification.texts, classify_reply, FLOAT_WEIGHT
    )
    found = []
    for path, serve, takes, names, summary, gives in (
        ("/pooling", pooling(frontend), PoolingBody, INPUT, "What the model's pooler gives, whatever it is", [0.1]),
        ("/score", score, ScoreBody, SCORED, "How well texts fit each other", None),
        ("/classify", classify, ClassifyBody, INPUT, "The label of each text", None),
    ):
        example = {"object": "list", "data": [{"index": 0, "data": gives} if gives else {"index": 0, "score": 0.9}]}
        found += [
            Route(
                method="POST",
                path=prefix + path,
                shape=OPENAI,
                summary=summary,
                takes=takes,
                gives=example,
                names=names,
                serve=serve,
            )
            for prefix in ("", "/v1")
        ]
    return found
