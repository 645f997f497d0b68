"""Cohere's rerank and embed, as Jina's and vLLM's too: /v1/rerank, /v2/rerank, /v2/embed.

Source: docs.cohere.com/reference/rerank and /reference/embed, version 2.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from frontend_service import packing
from frontend_service.answer import Answer
from frontend_service.doors.http.body import FILLED, LARGEST, Body, Count
from frontend_service.doors.http.errors import COHERE, OPENAI
from frontend_service.doors.http.reply import FLOAT_WEIGHT, Floats, Reply, base64_of, rows_of, written
from frontend_service.doors.http.route import Asked, Route, Serve, exchanged
from frontend_service.doors.http.shapes.openai import side_of, usage
from frontend_service.doors.http.shapes.scoring import ScoringRequest
from frontend_service.doors.renaming import Names
from frontend_service.frontend import Frontend
from frontend_service.ranking import Reranked
from frontend_service.ranking_requests import RerankRequest
from frontend_service.requests import Cut, EmbedRequest, PromptChoice
from shared.errors import InvalidInput
from shared.vectors import DataType, OutputKind, TruncationSide

EMBED_NAMES: Names = ((r"\bdimensions\b", "output_dimension"),)
RERANK_NAMES: Names = ((r"^method$", "model"),)
META = {"api_version": {"version": "2"}}


class Document(msgspec.Struct):
    """A document of a rerank, where it is more than its text."""

    text: str


class CohereRerankBody(ScoringRequest, kw_only=True):
    """POST /v2/rerank, with what vLLM adds. Longer texts are cut, as Cohere does."""

    query: str
    documents: Annotated[list[str | Document], FILLED]
    top_n: Annotated[int, msgspec.Meta(ge=0, le=LARGEST, description="How many to tell; 0: all.")] | None = None
    return_documents: bool = False


EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class TextPart(msgspec.Struct):
    """What an input may be made of; there is no model of images."""

    text: str
    type: Literal["text"] = "text"


class Input(msgspec.Struct):
    """A text as it stands beside images."""

    content: Annotated[list[TextPart], msgspec.Meta(min_length=1, max_length=1)]


class CohereEmbedBody(msgspec.Struct, kw_only=True):
    """POST /v2/embed: either `texts` or `inputs` has some."""

    texts: list[str] = []
    inputs: list[Input] = []
    model: str = ""
    input_type: str | None = None
    embedding_types: Annotated[list[EmbeddingType], FILLED] = msgspec.field(default_factory=lambda: ["float"])
    output_dimension: Count | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: Count | None = None
    images: Annotated[list[Any], msgspec.Meta(max_length=0, description="There is no model of images.")] = []


def rerank_request(body: CohereRerankBody) -> RerankRequest:
    activated = body.activated
    return RerankRequest(
        model=body.model,
        queries=(body.query,),
        documents=tuple(each if isinstance(each, str) else each.text for each in body.documents),
        top_n=body.top_n or None,
        return_documents=body.return_documents,
        instruction=body.instruction,
        query_cut=replace(body.query_cut, truncate=True),
        document_cut=replace(body.document_cut, truncate=True),
        sequence_cut=replace(body.cut, truncate=True),
        activated=activated is not False,
        raw_rows=activated is False,
    )


def rerank_reply(asked: Asked[CohereRerankBody, RerankRequest], reranked: Reranked) -> Reply:
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": score} for index, score in reranked.ranking]
    if asked.body.return_documents:
        for result, text in zip(results, reranked.texts, strict=True):
            result["document"] = {"text": text}
    tokens = reranked.answer.tokens.total
    return Reply(
        body=written(
            {
                "id": asked.body.request_id or asked.name,
                "model": reranked.answer.model,
                "results": results,
                "usage": usage(tokens),
                "meta": META | {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": tokens}},
            }
        )
    )


CUTS = {
    "NONE": (False, None),
    "START": (True, TruncationSide.LEFT),
    "END": (True, TruncationSide.RIGHT),
}


def embed_request(body: CohereEmbedBody) -> EmbedRequest:
    if body.texts and body.inputs:
        raise InvalidInput("texts and inputs are both there", field="inputs")
    texts = tuple(body.texts) or tuple(each.content[0].text for each in body.inputs)
    if not texts:
        raise InvalidInput("texts is empty", field="texts")
    if not body.embedding_types:
        raise InvalidInput("embedding_types is empty", field="embedding_types")
    truncate, side = CUTS[body.truncate]
    return EmbedRequest(
        model=body.model,
        texts=texts,
        prompt=PromptChoice(input_type=side_of(body.input_type)),
        cut=Cut(truncate=truncate, side=side, max_tokens=body.max_tokens),
        outputs=(OutputKind.DENSE,),
        dimensions=body.output_dimension,
        normalize=True,
    )


def int8_of(rows: Floats) -> Any:
    """int8 [N, D]: each row by its own scale, which cosines do not see."""
    return np.frombuffer(packing.pack(rows, DataType.INT8).data, dtype=np.int8).reshape(rows.shape)


def bits_of(rows: Floats) -> Any:
    """uint8 [N, ceil(D / 8)]: a bit a number, set where it is not negative, the first one highest."""
    return np.frombuffer(packing.pack(rows, DataType.BINARY).data, dtype=np.uint8).reshape(len(rows), -1)


TYPES: dict[str, Callable[[Floats], Any]] = {
    "float": lambda rows: rows,
    "int8": int8_of,
    "uint8": lambda rows: (int8_of(rows).astype(np.int16) + 128).astype(np.uint8),
    "binary": lambda rows: (bits_of(rows).astype(np.int16) - 128).astype(np.int8),
    "ubinary": bits_of,
    "base64": lambda rows: [base64_of(row) for row in rows],
}


def embed_reply(asked: Asked[CohereEmbedBody, EmbedRequest], answer: Answer) -> Reply:
    rows = rows_of(answer.result.dense)
    tokens = answer.tokens.total
    return Reply(
        body=written(
            {
                "id": asked.name,
                "embeddings": {kind: TYPES[kind](rows) for kind in dict.fromkeys(asked.body.embedding_types)},
                "texts": asked.request.texts,
                "response_type": "embeddings_by_type",
                "meta": META | {"billed_units": {"input_tokens": tokens}},
            }
        )
    )


def reranks(frontend: Frontend) -> Serve:
    """Of every path that takes `documents`."""
    return exchanged(frontend, Body(CohereRerankBody), rerank_request, frontend.ranking.rerank, rerank_reply)


def routes(frontend: Frontend) -> list[Route]:
    """All of this shape."""
    embed = exchanged(
        frontend, Body(CohereEmbedBody), embed_request, frontend.embedding.embed, embed_reply, FLOAT_WEIGHT
    )
    ranked = {"results": [{"index": 1, "relevance_score": 0.97}, {"index": 0, "relevance_score": 0.02}]}
    return [
        *(
            Route(
                method="POST",
                path=path,
                shape=shape,
                summary="Documents in the order in which they fit a query",
                takes=CohereRerankBody,
                gives=ranked,
                names=RERANK_NAMES,
                serve=reranks(frontend),
            )
            for path, shape in (("/v1/rerank", OPENAI), ("/v2/rerank", COHERE))
        ),
        Route(
            method="POST",
            path="/v2/embed",
            shape=COHERE,
            summary="A vector for each text, in several types at once",
            takes=CohereEmbedBody,
            gives={"embeddings": {"float": [[0.1, -0.2]]}, "texts": ["a text"]},
            names=EMBED_NAMES,
            serve=embed,
        ),
    ]
