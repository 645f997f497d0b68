"""OpenAI's embeddings, with what vLLM, Jina and NVIDIA add: /v1/embeddings, /embeddings. And Jina's /v1/multi-vector.

Source: platform.openai.com/docs/api-reference/embeddings; other fields: see `pooling_request` and `hosted_request`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np

from frontend_service.api.http.body import LARGEST, Body, inputs_of
from frontend_service.api.http.dialects.hosted_request import HostedRequest
from frontend_service.api.http.dialects.pooling_request import PoolingRequest, VectorRequest
from frontend_service.api.http.errors import OPENAI
from frontend_service.api.http.reply import FLOAT_WEIGHT, Floats, HttpReply, Parts, now, rows_of, split, with_list
from frontend_service.api.http.route import Endpoint, ExchangeEndpoint, ParsedRequest, Route
from frontend_service.application.frontend import Frontend
from frontend_service.domain.answer import Answer
from frontend_service.domain.requests import EmbedRequest, SpanPooling
from shared.errors import InvalidInput
from shared.vectors import OutputKind

Overlap = Annotated[
    int,
    msgspec.Meta(
        ge=0,
        le=LARGEST,
        description="With late_chunking or spans: documents over the model's limit are read in windows that share so "
        "many tokens.",
    ),
]


class EmbeddingsBody(HostedRequest, kw_only=True):
    """The body of POST /v1/embeddings. `spans` and `window_overlap` are fields of ours."""

    late_chunking: Annotated[
        bool | None,
        msgspec.Meta(description="The inputs are consecutive chunks of one document, which is read as a whole."),
    ] = None
    spans: Annotated[
        list[list[tuple[int, int]]] | None,
        msgspec.Meta(
            description="For each input, spans of it: the first character and the one behind the last, counted in "
            "Unicode code points. Each span gets a vector, and the inputs get none."
        ),
    ] = None
    window_overlap: Overlap | None = None

    @property
    def span_pooling(self) -> SpanPooling | None:
        """The spans to pool. Raises InvalidInput where fields exclude each other."""
        overlap = self.window_overlap
        if self.spans:
            if self.late_chunking:
                raise InvalidInput("late_chunking and spans are both given; at most one may be", field="spans")
            return SpanPooling(spans=tuple(map(tuple, self.spans)), window_overlap=overlap)
        if self.late_chunking:
            return SpanPooling(window_overlap=overlap)
        if overlap is not None:
            raise InvalidInput("window_overlap needs late_chunking or spans", field="window_overlap")
        return None


class MultiVectorBody(HostedRequest, kw_only=True):
    """The body of POST /v1/multi-vector: a vector for each token of a late-interaction model."""

    return_token_ids: bool = False


def embed_request(body: VectorRequest, output: OutputKind, *, token_ids: bool = False) -> EmbedRequest:
    """The request for one output of each input. Raises InvalidInput."""
    texts, tokenized = inputs_of(body.plain_input, "input")
    return EmbedRequest(
        model=body.model,
        texts=texts,
        tokenized=tokenized,
        prompt=body.choice,
        cut=body.cut,
        outputs=(output,),
        dimensions=body.width,
        normalize=body.activated,
        return_token_ids=token_ids,
    )


def embeddings_request(body: EmbeddingsBody) -> EmbedRequest:
    """The request for a vector of each input, each chunk or each span. Raises InvalidInput."""
    return replace(embed_request(body, OutputKind.DENSE), span_pooling=body.span_pooling)


def usage(tokens: int) -> dict[str, int]:
    """The `usage` of a reply: tokens that were computed."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def list_reply(parsed: ParsedRequest[Any, Any], prefix: str, answer: Answer, data: Sequence[Parts]) -> HttpReply:
    """A reply with a list of data, as all of OpenAI's are. Its id is that of the body, or else that of the call."""
    body: PoolingRequest = parsed.body
    fields = {
        "id": f"{prefix}-{body.request_id or parsed.request_id}",
        "created": now(),
        "model": answer.model,
        "usage": usage(answer.tokens.total),
        "object": "list",
    }
    return HttpReply(body=with_list(fields, "data", data))


def vector_list_reply(
    parsed: ParsedRequest[Any, Any], prefix: str, answer: Answer, arrays: list[Floats], kind: str, field: str
) -> HttpReply:
    """A reply of arrays in the encoding of the request. `kind`: names an array; `field`: names its numbers."""
    encoding = parsed.body.encoding
    data = [encoding.to_json({"object": kind, "index": index}, field, array) for index, array in enumerate(arrays)]
    return list_reply(parsed, prefix, answer, data)


def embeddings_reply(parsed: ParsedRequest[EmbeddingsBody, EmbedRequest], answer: Answer) -> HttpReply:
    return vector_list_reply(parsed, "embd", answer, list(rows_of(answer.result.dense)), "embedding", "embedding")


def multi_vector_reply(parsed: ParsedRequest[MultiVectorBody, EmbedRequest], answer: Answer) -> HttpReply:
    rows, encoding = split(rows_of(answer.result.tokens), answer.result.row_lengths), parsed.body.encoding
    about: list[dict[str, Any]] = [{"object": "embeddings", "index": index} for index in range(len(rows))]
    if encoding.format == "base64":
        for fields, array in zip(about, rows, strict=True):
            fields["shape"] = array.shape
    if parsed.body.return_token_ids:
        ids = split(np.frombuffer(answer.result.token_ids, dtype="<i4"), answer.result.row_lengths)
        for fields, text_ids in zip(about, ids, strict=True):
            fields["token_ids"] = text_ids
    data = [encoding.to_json(fields, "embeddings", array) for fields, array in zip(about, rows, strict=True)]
    return list_reply(parsed, "mvec", answer, data)


def embeddings_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint for vectors of texts."""
    return ExchangeEndpoint(
        frontend,
        Body(EmbeddingsBody),
        embeddings_request,
        frontend.embedding.embed,
        embeddings_reply,
        FLOAT_WEIGHT,
        lambda body: body.names,
    )


def multi_vector_endpoint(frontend: Frontend) -> Endpoint:
    """Makes the endpoint for vectors of tokens."""
    return ExchangeEndpoint(
        frontend,
        Body(MultiVectorBody),
        lambda body: embed_request(body, OutputKind.MULTI_VECTOR, token_ids=body.return_token_ids),
        frontend.embedding.embed,
        multi_vector_reply,
        FLOAT_WEIGHT,
        lambda body: body.names,
    )


def routes(frontend: Frontend) -> list[Route]:
    """All routes of this dialect."""
    embeddings = embeddings_endpoint(frontend)
    return [
        *(
            Route(
                method="POST",
                path=path,
                dialect=OPENAI,
                summary="A vector for each input",
                body_type=EmbeddingsBody,
                example={
                    "object": "list",
                    "model": "all-MiniLM-L6-v2",
                    "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -0.2]}],
                    "usage": {"prompt_tokens": 4, "total_tokens": 4},
                },
                endpoint=embeddings,
            )
            for path in ("/v1/embeddings", "/embeddings")
        ),
        Route(
            method="POST",
            path="/v1/multi-vector",
            dialect=OPENAI,
            summary="A vector for each token of each input, of a late-interaction model",
            body_type=MultiVectorBody,
            example={"object": "list", "data": [{"object": "embeddings", "index": 0, "embeddings": [[0.1], [0.2]]}]},
            endpoint=multi_vector_endpoint(frontend),
        ),
    ]
