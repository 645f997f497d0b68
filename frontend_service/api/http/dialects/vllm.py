"""vLLM's own paths: /pooling, /score and /classify, each with and without /v1; /detokenize, and bodies of /tokenize.

Source: docs.vllm.ai, "Pooling models"; vLLM's vllm/entrypoints/pooling and vllm/entrypoints/serve/tokenize/protocol.py.
"""

from typing import Annotated, Any, ClassVar

import msgspec

from frontend_service.api.http.body import FILLED, Body, Id, Texts, texts_of
from frontend_service.api.http.dialects.encoding import OCTETS
from frontend_service.api.http.dialects.openai import list_reply
from frontend_service.api.http.dialects.pooling import PoolingBody, PoolingEndpoint, label_scores
from frontend_service.api.http.dialects.pooling_request import Activated, InputRequest, input_type_of
from frontend_service.api.http.dialects.scoring import ScoreBody, score_endpoint
from frontend_service.api.http.errors import OPENAI
from frontend_service.api.http.refused_fields import refusing
from frontend_service.api.http.reply import FLOAT_WEIGHT, HttpReply, each_in_parts, to_json
from frontend_service.api.http.route import Endpoint, ExchangeEndpoint, HttpCall, ParsedRequest, Route, renamed_error
from frontend_service.api.renaming import Names
from frontend_service.application.frontend import Frontend
from frontend_service.domain.requests import (
    ClassifyRequest,
    DetokenizeRequest,
    PromptChoice,
    TokenizeRequest,
    Truncation,
)
from frontend_service.services.classify import Classified
from frontend_service.services.models import ShownTexts
from shared.errors import InvalidInput, SelvageError

PROMPT: Names = ((r"\btexts(\[0\])?", "prompt"), ("ask for fewer prompt", "ask for a shorter prompt"))
"""Our names in errors of a /tokenize with `prompt`."""
TOKENS: Names = ((r"\btokenized(\[0\])?", "tokens"),)
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


class TokenizePromptBody(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize, where it has `prompt`. `input_type` is a field of ours."""

    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False
    input_type: str | None = None
    model: str = ""
    messages: Annotated[Any, refusing("no chat template is applied here; send the text as prompt")] = None


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


def tokenize_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint of a POST /tokenize with `prompt`. The text is read as it is, without the model's prompt."""
    tokenize_body = Body(TokenizePromptBody)

    async def endpoint(call: HttpCall) -> HttpReply:
        body = await frontend.offload(len(call.body), tokenize_body.read, call.body)
        choice = PromptChoice(literal="", input_type=input_type_of(body.input_type))
        max_tokens = frontend.models.get(body.model).card.max_tokens
        request = TokenizeRequest(model=body.model, texts=(body.prompt,), prompt=choice, cut=Truncation(limited=False))
        try:
            shown = await frontend.models.tokenize(request)
        except SelvageError as error:
            raise renamed_error(error, PROMPT) from error
        return await frontend.offload(
            FLOAT_WEIGHT * shown.size, lambda shown: tokenize_reply(body, shown, max_tokens), shown
        )

    return endpoint


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize. `input_type` is a field of ours."""

    tokens: Annotated[list[Id], FILLED]
    input_type: str | None = None
    model: str = ""


def detokenize_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint of POST /detokenize. Special tokens are written too, as vLLM does."""
    detokenize_body = Body(DetokenizeBody)

    async def endpoint(call: HttpCall) -> HttpReply:
        body = await frontend.offload(len(call.body), detokenize_body.read, call.body)
        if not body.tokens:
            raise InvalidInput("tokens is empty", field="tokens")
        request = DetokenizeRequest(
            model=body.model, tokenized=(tuple(body.tokens),), input_type=input_type_of(body.input_type)
        )
        return HttpReply(body=to_json({"prompt": (await frontend.models.detokenize(request)).texts[0]}))

    return endpoint


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
    ] + [
        Route(
            method="POST",
            path="/detokenize",
            dialect=OPENAI,
            summary="The text of ids",
            body_type=DetokenizeBody,
            example={"prompt": "a text"},
            names=TOKENS,
            needs_worker=False,
            endpoint=detokenize_endpoint(frontend),
        )
    ]
