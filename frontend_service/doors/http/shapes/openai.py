"""OpenAI's embeddings and models, with what vLLM adds: /v1/embeddings, /v1/models. And /v1/multi-vector, as Jina's.

Source: platform.openai.com/docs/api-reference/embeddings; vLLM's openai_compatible_server; jina.ai's multi-vector.
"""

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from frontend_service.answer import Answer
from frontend_service.doors.http.body import Body, Count, Inputs, inputs_of
from frontend_service.doors.http.errors import OPENAI
from frontend_service.doors.http.reply import (
    FLOAT_WEIGHT,
    Reply,
    base64_of,
    each_written,
    now,
    rows_of,
    split,
    written,
)
from frontend_service.doors.http.route import Asked, Call, Route, exchanged
from frontend_service.doors.renaming import Names
from frontend_service.frontend import Frontend
from frontend_service.requests import Cut, EmbedRequest, PromptChoice
from shared.card import ModelCard
from shared.errors import InvalidInput, clip
from shared.vectors import InputType, OutputKind

INPUT: Names = ((r"\b(texts|tokenized)\b", "input"), ("max_tokens", "truncate_prompt_tokens"))
SIDES = {
    "query": InputType.QUERY,
    "search_query": InputType.QUERY,
    "document": InputType.DOCUMENT,
    "passage": InputType.DOCUMENT,
    "search_document": InputType.DOCUMENT,
    "classification": InputType.UNSPECIFIED,
    "clustering": InputType.UNSPECIFIED,
}
"""By the words that clients use for what a text is."""
Encoding = Literal["float", "base64"]
Truncation = Annotated[
    int,
    msgspec.Meta(
        ge=-1, le=2**31 - 1, description="Longer inputs are cut to so many tokens; -1: to what the model takes."
    ),
]
STARTED = now()
"""What models are told to be created at: nobody knows."""


class Given(msgspec.Struct, kw_only=True):
    """What all requests to embed have in common. What a text is goes by `input_type`, its prompt by either of two."""

    input: Inputs
    model: str = ""
    encoding_format: Encoding | None = "float"
    dimensions: Count | None = None
    user: str | None = None
    truncate_prompt_tokens: Truncation | None = None
    normalize: bool | None = None
    input_type: str | None = None
    prompt: str | None = None
    prompt_name: str | None = None


class EmbeddingsBody(Given, kw_only=True):
    """POST /v1/embeddings."""


class MultiVectorBody(Given, kw_only=True):
    """POST /v1/multi-vector: a vector for each token of a late-interaction model."""

    return_token_ids: bool = False


def embed_request(body: Given, output: OutputKind, *, token_ids: bool = False) -> EmbedRequest:
    """Raises InvalidInput."""
    texts, tokenized = inputs_of(body.input, "input")
    return EmbedRequest(
        model=body.model,
        texts=texts,
        tokenized=tokenized,
        prompt=PromptChoice(literal=body.prompt, name=body.prompt_name, input_type=side_of(body.input_type)),
        cut=cut_of(body.truncate_prompt_tokens),
        outputs=(output,),
        dimensions=body.dimensions,
        normalize=body.normalize,
        return_token_ids=token_ids,
    )


def side_of(word: str | None) -> InputType:
    """What a text is. Raises InvalidInput."""
    if word is None:
        return InputType.UNSPECIFIED
    if word not in SIDES:
        raise InvalidInput(f"input_type is {clip(word)}, there are {', '.join(SIDES)}", field="input_type")
    return SIDES[word]


def cut_of(tokens: int | None) -> Cut:
    """What is to be done with texts over so many tokens; 0 and None: they are refused."""
    if not tokens:
        return Cut()
    return Cut(truncate=True, max_tokens=None if tokens < 0 else tokens, field="truncate_prompt_tokens")


def usage(tokens: int) -> dict[str, int]:
    """Of what was computed."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def listed(asked: Asked[Any, Any], prefix: str, answer: Answer, data: list[Any]) -> Reply:
    """The frame of OpenAI's replies."""
    return Reply(
        body=written(
            {
                "id": f"{prefix}-{asked.name}",
                "object": "list",
                "created": now(),
                "model": answer.model,
                "data": each_written(data),
                "usage": usage(answer.tokens.total),
            }
        )
    )


def encoded(array: Any, encoding: Encoding | None) -> Any:
    """Numbers, or their bytes as float32, little-endian."""
    return array if encoding != "base64" else base64_of(np.ascontiguousarray(array))


def embeddings_reply(asked: Asked[EmbeddingsBody, EmbedRequest], answer: Answer) -> Reply:
    rows, encoding = rows_of(answer.result.dense), asked.body.encoding_format
    data = [
        {"object": "embedding", "index": index, "embedding": encoded(row, encoding)} for index, row in enumerate(rows)
    ]
    return listed(asked, "embd", answer, data)


def multi_vector_reply(asked: Asked[MultiVectorBody, EmbedRequest], answer: Answer) -> Reply:
    rows = split(rows_of(answer.result.tokens), answer.result.row_lengths)
    data: list[dict[str, Any]] = [
        {"object": "embeddings", "index": index, "embeddings": encoded(each, asked.body.encoding_format)}
        for index, each in enumerate(rows)
    ]
    if asked.body.encoding_format == "base64":
        for each, own in zip(data, rows, strict=True):
            each["shape"] = own.shape
    if asked.body.return_token_ids:
        ids, start = np.frombuffer(answer.result.token_ids, dtype="<i4"), 0
        for each, own in zip(data, rows, strict=True):
            each["token_ids"], start = ids[start : start + len(own)], start + len(own)
    return listed(asked, "mvec", answer, data)


def model_of(card: ModelCard) -> dict[str, Any]:
    """As OpenAI lists a model, with what vLLM adds, and what ours tell."""
    return {
        "id": card.id,
        "object": "model",
        "created": STARTED,
        "owned_by": "selvage",
        "root": card.id,
        "parent": None,
        "max_model_len": card.max_tokens,
        "tasks": [each.name.lower() for each in card.tasks],
        "outputs": [each.name.lower() for each in card.outputs],
        "dimensions": card.dimensions or card.multi_vector_dimensions,
        "fingerprint": card.fingerprint,
    }


def routes(frontend: Frontend) -> list[Route]:
    """All of this shape."""

    async def models(_: Call) -> Reply:
        return Reply(body=written({"object": "list", "data": [model_of(each) for each in frontend.models.cards()]}))

    async def model(call: Call) -> Reply:
        return Reply(body=written(model_of(frontend.models.get(call.rest).card)))

    embeddings, multi_vector = Body(EmbeddingsBody), Body(MultiVectorBody)
    return [
        Route(
            method="POST",
            path="/v1/embeddings",
            shape=OPENAI,
            summary="A vector for each input",
            takes=EmbeddingsBody,
            gives={
                "object": "list",
                "model": "all-MiniLM-L6-v2",
                "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -0.2]}],
                "usage": {"prompt_tokens": 4, "total_tokens": 4},
            },
            names=INPUT,
            serve=exchanged(
                frontend,
                embeddings,
                lambda body: embed_request(body, OutputKind.DENSE),
                frontend.embedding.embed,
                embeddings_reply,
                FLOAT_WEIGHT,
            ),
        ),
        Route(
            method="POST",
            path="/v1/multi-vector",
            shape=OPENAI,
            summary="A vector for each token of each input, of a late-interaction model",
            takes=MultiVectorBody,
            gives={"object": "list", "data": [{"object": "embeddings", "index": 0, "embeddings": [[0.1], [0.2]]}]},
            names=INPUT,
            serve=exchanged(
                frontend,
                multi_vector,
                lambda body: embed_request(body, OutputKind.MULTI_VECTOR, token_ids=body.return_token_ids),
                frontend.embedding.embed,
                multi_vector_reply,
                FLOAT_WEIGHT,
            ),
        ),
        Route(
            method="GET",
            path="/v1/models",
            shape=OPENAI,
            summary="The models that are served",
            gives={"object": "list", "data": [{"id": "all-MiniLM-L6-v2", "object": "model", "max_model_len": 256}]},
            waits=False,
            serve=models,
        ),
        Route(
            method="GET",
            path="/v1/models/",
            shape=OPENAI,
            summary="One of them",
            gives={"id": "all-MiniLM-L6-v2", "object": "model", "max_model_len": 256},
            waits=False,
            serve=model,
        ),
    ]
