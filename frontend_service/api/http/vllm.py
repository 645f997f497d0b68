"""vLLM's own paths: /pooling, /score and /classify, each with and without /v1; /detokenize, and bodies of /tokenize.

Source: docs.vllm.ai, "Pooling models"; vLLM's vllm/entrypoints/pooling and vllm/entrypoints/serve/tokenize/protocol.py.
"""

from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from frontend_service.api.http.error_replies import OPENAI
from frontend_service.api.http.fields import FILLED, Body, Id, Texts, inputs_of, refusing, texts_of
from frontend_service.api.http.openai import embed_request, list_reply, vector_list_reply
from frontend_service.api.http.routes import (
    FLOAT_WEIGHT,
    HttpCall,
    HttpReply,
    Route,
    entries_in_fragments,
    rows_of,
    split,
    to_json,
)
from frontend_service.api.http.vllm_fields import (
    MODEL,
    Activated,
    InputRequest,
    PoolingRequest,
    VectorRequest,
    input_type_of,
)
from frontend_service.domain.requests import (
    ClassifyRequest,
    ClassifyTokensRequest,
    DetokenizeRequest,
    FieldNames,
    PromptChoice,
    ScoreNormalization,
    ScoreRequest,
    TokenizeRequest,
    Truncation,
)
from frontend_service.services.classify import Classified, ClassifiedTokens
from frontend_service.services.models import ShownTexts
from frontend_service.services.pipeline import Answer
from shared.card import ModelCard
from shared.errors import InvalidInput
from shared.vectors import Layout, OutputKind, Task

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]
OUTPUTS: dict[PoolingTask, OutputKind] = {"embed": OutputKind.DENSE, "token_embed": OutputKind.MULTI_VECTOR}
"""The outputs of the tasks that ask for vectors."""


class PoolingBody(VectorRequest, kw_only=True):
    """The body of POST /pooling.

    Without a `task` the model's own: token vectors before one vector, and labels of a classifier.
    """

    ACTIVATIONS: ClassVar[tuple[str, ...]] = (*VectorRequest.ACTIVATIONS, "softmax", "activation")

    task: PoolingTask | None = None
    softmax: Activated = None
    activation: Activated = None
    data: Annotated[Any, refusing("there are no plugins; send texts as input")] = None


def pooled_reply(body: PoolingBody, request_id: str, answer: Answer, arrays: list[Any]) -> HttpReply:
    """A reply of one array for each input."""
    return vector_list_reply(body, request_id, "pool", answer, arrays, "pooling", "data")


def vectors_reply(body: PoolingBody, request_id: str, answer: Answer) -> HttpReply:
    """The vector of each input, or those of its tokens."""
    if answer.result.tokens is not None:
        rows = split(rows_of(answer.result.tokens), answer.result.row_lengths)
        return pooled_reply(body, request_id, answer, rows)
    return pooled_reply(body, request_id, answer, list(rows_of(answer.result.dense)))


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


def labels_reply(body: PoolingBody, request_id: str, classified: Classified) -> HttpReply:
    """The scores of each input, or those of its tokens."""
    rows, lengths = label_scores(classified), classified.answer.result.row_lengths
    arrays = split(rows, lengths) if isinstance(classified, ClassifiedTokens) else list(rows)
    return pooled_reply(body, request_id, classified.answer, arrays)


def task_of(card: ModelCard) -> PoolingTask:
    """The main task of a model, for requests without a task."""
    if Task.CLASSIFY_TOKENS in card.tasks:
        return "token_classify"
    if Task.CLASSIFY in card.tasks:
        return "classify"
    return "token_embed" if card.outputs[:1] == (OutputKind.MULTI_VECTOR,) else "embed"


POOLING = Body(PoolingBody)


async def pooling(call: HttpCall) -> HttpReply:
    """Answers POST /pooling: what its task asks for, or the main task of its model."""
    body = await call.read(POOLING)
    frontend, request_id = call.frontend, call.caller.request_id
    task = body.task or task_of(frontend.models.get(body.model).card)
    if task in OUTPUTS:
        read = partial(embed_request, output=OUTPUTS[task])
        answer = await call.ask(frontend.embedding.embed, read, body, lambda: body.names)
        return await call.reply(answer, FLOAT_WEIGHT * answer.size, partial(vectors_reply, body, request_id, answer))
    classified: Classified
    if task == "classify":
        classified = await call.ask(frontend.classification.texts, labels_request, body, lambda: body.names)
    else:
        classified = await call.ask(frontend.classification.tokens, token_labels_request, body, lambda: body.names)
    answer = classified.answer
    return await call.reply(answer, FLOAT_WEIGHT * answer.size, partial(labels_reply, body, request_id, classified))


TokenLimit = Annotated[int, msgspec.Meta(ge=0, description="Longer texts are cut to so many tokens; 0: no limit.")]
SIDES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
"""Names of the two sides of a comparison, in the order in which vLLM looks for them."""
SIDE_NAMES = tuple(dict.fromkeys(name for sides in SIDES for name in sides))


class ScoringRequest(PoolingRequest, kw_only=True):
    """Fields of requests that compare texts. `truncate_prompt_tokens` limits a pair, where the model reads pairs."""

    ACTIVATIONS: ClassVar[tuple[str, ...]] = ("use_activation", "softmax", "activation")

    max_tokens_per_query: TokenLimit | None = None
    max_tokens_per_doc: TokenLimit | None = None
    instruction: str | None = None
    chat_template_kwargs: Annotated[Any, refusing("instruction is what a template takes here", {})] = None
    softmax: Activated = None
    activation: Activated = None

    @property
    def normalization(self) -> ScoreNormalization:
        """Activated scores, unless a field says that logits and token rows stay as the model gives them."""
        raw = self.activated is False
        return ScoreNormalization.LOGITS_AND_RAW_ROWS if raw else ScoreNormalization.ACTIVATED

    @property
    def query_cut(self) -> Truncation:
        """The truncation of texts of the first side."""
        return _truncation(self.max_tokens_per_query, "max_tokens_per_query")

    @property
    def document_cut(self) -> Truncation:
        """The truncation of texts of the second side."""
        return _truncation(self.max_tokens_per_doc, "max_tokens_per_doc")


def _truncation(tokens: int | None, field: str) -> Truncation:
    return Truncation(truncate=True, max_tokens=tokens, field=field, bound=True) if tokens else Truncation(field=field)


class ScoreBody(ScoringRequest, kw_only=True):
    """The body of POST /score: one text with each of many, or pairs. Two sides, by one of four pairs of names."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None

    @property
    def sides(self) -> tuple[str, str]:
        """Names of the two sides. Raises InvalidInput unless the body has exactly these of one comparison."""
        sent = self._sent
        sides = max(SIDES, key=lambda sides: len(sent & set(sides))) if sent else SIDES[-1]
        missing = [name for name in sides if name not in sent]
        odd = [name for name in SIDE_NAMES if name in sent - set(sides)]
        if odd:
            beside = " and ".join(name for name in sides if name in sent)
            raise InvalidInput(f"{odd[0]} and {beside} are given, and are no pair", field=odd[0])
        if missing:
            raise InvalidInput(f"{missing[0]} is missing", field=missing[0])
        return sides

    @property
    def names(self) -> FieldNames:
        """Our names in errors as this body has them: those of its sides, without a number for a side of one text."""
        sides = next((sides for sides in SIDES if self._sent == set(sides)), SIDES[0])
        names = dict(zip(("queries", "documents"), sides, strict=True))
        alone = {f"{field}[]": name for field, name in names.items() if isinstance(getattr(self, name), str)}
        return {**MODEL, **names, **alone}

    @property
    def _sent(self) -> set[str]:
        """Names of the sides that the body has."""
        return {name for name in SIDE_NAMES if getattr(self, name) is not None}


def score_request(body: ScoreBody) -> ScoreRequest:
    """The request for scores of one text with many, or of pairs. Raises InvalidInput."""
    first, second = (texts_of(getattr(body, name)) for name in body.sides)
    return ScoreRequest(
        model=body.model,
        queries=first,
        documents=second,
        layout=Layout.MATRIX if len(first) == 1 else Layout.PAIRS,
        instruction=body.instruction,
        query_cut=body.query_cut,
        document_cut=body.document_cut,
        sequence_cut=body.cut,
        normalization=body.normalization,
    )


def score_reply(body: ScoreBody, request_id: str, answer: Answer) -> HttpReply:
    scores = np.frombuffer(answer.result.scores, dtype="<f4").tolist()
    data = [{"object": "score", "index": index, "score": score} for index, score in enumerate(scores)]
    return list_reply(body, request_id, "score", answer, entries_in_fragments(data))


SCORE = Body(ScoreBody)


async def score(call: HttpCall) -> HttpReply:
    """Answers POST /score."""
    body = await call.read(SCORE)
    answer = await call.ask(call.frontend.ranking.score, score_request, body, lambda: body.names)
    return await call.reply(answer, answer.size, partial(score_reply, body, call.caller.request_id, answer))


PROMPT: FieldNames = {"texts": "prompt", "texts[]": "prompt"}
"""Our names in errors of a /tokenize with `prompt`."""
TOKENS: FieldNames = {"tokenized": "tokens", "tokenized[]": "tokens"}
"""Our names in errors of /detokenize."""


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


def classify_reply(body: ClassifyBody, request_id: str, classified: Classified) -> HttpReply:
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
    return list_reply(body, request_id, "classify", classified.answer, entries_in_fragments(data))


CLASSIFY = Body(ClassifyBody)


async def classify(call: HttpCall) -> HttpReply:
    """Answers POST /classify."""
    body = await call.read(CLASSIFY)
    classified = await call.ask(call.frontend.classification.texts, classify_request, body, lambda: body.names)
    write = partial(classify_reply, body, call.caller.request_id, classified)
    return await call.reply(classified.answer, FLOAT_WEIGHT * classified.answer.size, write)


class TokenizePromptBody(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize, where it has `prompt`. `input_type` is a field of ours."""

    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False
    input_type: str | None = None
    model: str = ""
    messages: Annotated[Any, refusing("no chat template is applied here; send the text as prompt")] = None


def tokenize_request(body: TokenizePromptBody) -> TokenizeRequest:
    """The request for the tokens of a text as it is, without the model's prompt. Raises InvalidInput."""
    choice = PromptChoice(literal="", input_type=input_type_of(body.input_type))
    return TokenizeRequest(model=body.model, texts=(body.prompt,), prompt=choice, cut=Truncation(limited=False))


def tokenize_reply(body: TokenizePromptBody, shown: ShownTexts, max_tokens: int) -> HttpReply:
    """The tokens of the only text."""
    encoding = shown.texts[0].encoding
    tokens = [
        (token_id, token)
        for token_id, token, special in zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, strict=True)
        if body.add_special_tokens or not special
    ]
    reply = {
        "count": len(tokens),
        "max_model_len": max_tokens,
        "tokens": [token_id for token_id, _ in tokens],
        "token_strs": [token for _, token in tokens] if body.return_token_strs else None,
    }
    return HttpReply(body=to_json(reply))


TOKENIZE = Body(TokenizePromptBody)


async def tokenize(call: HttpCall) -> HttpReply:
    """Answers POST /tokenize with `prompt`."""
    body, models = await call.read(TOKENIZE), call.frontend.models
    max_tokens = models.get(body.model).card.max_tokens
    shown = await call.ask(lambda request, _: models.tokenize(request), tokenize_request, body, lambda: PROMPT)
    write = partial(tokenize_reply, body, max_tokens=max_tokens)
    return await call.frontend.pipeline.offload(FLOAT_WEIGHT * shown.size, write, shown)


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize. `input_type` is a field of ours."""

    tokens: Annotated[list[Id], FILLED]
    input_type: str | None = None
    model: str = ""


DETOKENIZE = Body(DetokenizeBody)


def detokenize_request(body: DetokenizeBody) -> DetokenizeRequest:
    """The request for the text of ids. Raises InvalidInput."""
    if not body.tokens:
        raise InvalidInput("tokens is empty", field="tokens")
    input_type = input_type_of(body.input_type)
    return DetokenizeRequest(model=body.model, tokenized=(tuple(body.tokens),), input_type=input_type)


async def detokenize(call: HttpCall) -> HttpReply:
    """Answers POST /detokenize. Special tokens are written too, as vLLM does."""
    body, models = await call.read(DETOKENIZE), call.frontend.models
    detokenized = await call.ask(
        lambda request, _: models.detokenize(request), detokenize_request, body, lambda: TOKENS
    )
    return await call.frontend.pipeline.offload(
        detokenized.size, lambda texts: HttpReply(body=to_json({"prompt": texts[0]})), detokenized.texts
    )


ROUTES = (
    *(
        Route(
            method="POST",
            path=prefix + path,
            dialect=OPENAI,
            summary=summary,
            body_type=body_type,
            example={"object": "list", "data": [{"index": 0, **example}]},
            endpoint=endpoint,
        )
        for path, endpoint, body_type, summary, example in (
            ("/pooling", pooling, PoolingBody, "What the model's pooler gives, whatever it is", {"data": [0.1]}),
            ("/score", score, ScoreBody, "How well texts fit each other", {"score": 0.9}),
            ("/classify", classify, ClassifyBody, "The label of each text", {"label": "positive"}),
        )
        for prefix in ("", "/v1")
    ),
    Route(
        method="POST",
        path="/detokenize",
        dialect=OPENAI,
        summary="The text of ids",
        body_type=DetokenizeBody,
        example={"prompt": "a text"},
        needs_worker=False,
        endpoint=detokenize,
    ),
)
