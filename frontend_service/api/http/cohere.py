"""Cohere's API: /v1/rerank and /v2/rerank with the fields that Jina, Voyage and vLLM add, /v1/embed and /v2/embed. And
the ranking of NVIDIA's NIM: /v1/ranking.

Source: docs.cohere.com/reference, versions 1 and 2; api.jina.ai/openapi.json; docs.voyageai.com/reference/reranker-api;
docs.nvidia.com/nim/nemo-retriever/text-reranking, "API reference", 2.x; vLLM's fields are those of its scoring.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from frontend_service.api.http.error_replies import COHERE, OPENAI
from frontend_service.api.http.fields import FILLED, Body, Bound, Count, Top, refusing
from frontend_service.api.http.openai import CUTS, usage
from frontend_service.api.http.routes import (
    BITS,
    FLOAT_WEIGHT,
    Floats,
    HttpCall,
    HttpReply,
    Route,
    base64_of,
    rows_of,
    to_json,
)
from frontend_service.api.http.vllm import ScoringRequest
from frontend_service.api.http.vllm_fields import MODEL, NO_IMAGES, TRUNCATE, agreed, input_type_of
from frontend_service.domain.requests import (
    EmbedRequest,
    FieldNames,
    PromptChoice,
    RerankRequest,
    ScoreNormalization,
    Truncation,
)
from frontend_service.services.pipeline import Answer
from frontend_service.services.rank import Reranked
from shared.errors import InvalidInput, clip
from shared.packing import pack
from shared.vectors import DataType, OutputKind

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
EMBED_NAMES: FieldNames = {**MODEL, "dimensions": "output_dimension"}


class ContentPart(msgspec.Struct):
    """A part of an input, which must be a text."""

    text: str | None = None
    type: str = "text"


class Input(msgspec.Struct):
    """A text as it stands beside images, which are not served."""

    content: Annotated[list[ContentPart], FILLED]


class CohereEmbedBody(msgspec.Struct, kw_only=True):
    """The body of POST /v1/embed and /v2/embed: either `texts` or `inputs` has some."""

    texts: list[str] | None = None
    inputs: list[Input] | None = None
    model: str = ""
    input_type: str | None = None
    embedding_types: Annotated[list[EmbeddingType], FILLED] | None = None
    output_dimension: Count | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: Bound | None = None
    images: Annotated[Any, refusing(NO_IMAGES, [])] = None
    priority: Annotated[Any, refusing("the header selvage-priority tells how urgent a request is", 0)] = None


def embed_request(body: CohereEmbedBody) -> EmbedRequest:
    if body.texts and body.inputs:
        raise InvalidInput("texts and inputs are both there", field="inputs")
    texts = _texts_of(body)
    if not texts:
        lists = [name for name in ("texts", "inputs") if getattr(body, name) is not None]
        field, fault = (lists[0], "empty") if lists else ("texts", "missing")
        raise InvalidInput(f"{field} is {fault}", field=field)
    if body.embedding_types is not None and not body.embedding_types:
        raise InvalidInput("embedding_types is empty", field="embedding_types")
    truncate, side = CUTS[body.truncate]
    return EmbedRequest(
        model=body.model,
        texts=texts,
        prompt=PromptChoice(input_type=input_type_of(body.input_type)),
        cut=Truncation(truncate=truncate, side=side, max_tokens=body.max_tokens, bound=True),
        outputs=(OutputKind.DENSE,),
        dimensions=body.output_dimension,
        normalize=True,
    )


def _texts_of(body: CohereEmbedBody) -> tuple[str, ...]:
    """The texts of either field. Raises InvalidInput for inputs of another kind."""
    return tuple(body.texts or ()) or tuple(
        _text_of_input(entry, place) for place, entry in enumerate(body.inputs or ())
    )


def _text_of_input(entry: Input, place: int) -> str:
    """The text of an entry of `inputs`. Raises InvalidInput for any other content."""
    name = f"inputs[{place}].content"
    if len(entry.content) != 1:
        raise InvalidInput(f"{name} has {len(entry.content)} parts, must have 1: a text", field=name)
    (part,) = entry.content
    if part.type != "text":
        raise InvalidInput(f"{name}[0].type is {clip(part.type)}: {NO_IMAGES}", field=f"{name}[0].type")
    if part.text is None:
        raise InvalidInput(f"{name}[0].text is missing", field=f"{name}[0].text")
    return part.text


def embed_names(body: CohereEmbedBody) -> FieldNames:
    """Our names in errors as this body has them: a text of `inputs` is nested deeper than one of `texts`."""
    return (
        EMBED_NAMES
        if body.texts or not body.inputs
        else {**EMBED_NAMES, "texts": "inputs", "texts[]": "inputs[].content[0].text"}
    )


def int8_of(rows: Floats) -> Any:
    """Quantizes rows to int8 [N, D], each by its own scale, which does not change cosines."""
    return np.frombuffer(pack(rows, DataType.INT8).data, dtype=np.int8).reshape(rows.shape)


CONVERSIONS: dict[str, Callable[[Floats], Any]] = {
    "float": lambda rows: rows,
    "int8": int8_of,
    "uint8": lambda rows: (int8_of(rows).astype(np.int16) + 128).astype(np.uint8),
    **BITS,
    "base64": lambda rows: [base64_of(row) for row in rows],
}


def embed_reply(body: CohereEmbedBody, answer: Answer, request_id: str, version: str) -> HttpReply:
    """`version`: that of Cohere's API. Without `embedding_types` version 1 has plain lists, version 2 has `float`."""
    rows, types = rows_of(answer.result.dense), body.embedding_types
    plain = types is None and version == "1"
    return HttpReply(
        body=to_json(
            {
                "id": request_id,
                "embeddings": rows
                if plain
                else {name: CONVERSIONS[name](rows) for name in dict.fromkeys(types or ["float"])},
                "texts": _texts_of(body),
                "response_type": "embeddings_floats" if plain else "embeddings_by_type",
                "meta": {
                    "api_version": {"version": version},
                    "billed_units": {"input_tokens": answer.tokens.total},
                },
            }
        )
    )


EMBED = Body(CohereEmbedBody)


async def embed(version: str, call: HttpCall) -> HttpReply:
    """Answers POST /v1/embed and /v2/embed, by the `version` of Cohere's API."""
    body = await call.read(EMBED)
    answer = await call.ask(call.frontend.embedding.embed, embed_request, body, lambda: embed_names(body))
    write = partial(embed_reply, body, answer, call.caller.request_id, version)
    return await call.reply(answer, FLOAT_WEIGHT * answer.size, write)


_DOCUMENT = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
Document = Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=_DOCUMENT)]
"""A document whose text is in `text`; its other fields are sent back with it."""
NOT_TEXT = {"image": NO_IMAGES, "image_url": NO_IMAGES, "content": "nothing reads content"}
"""Fields of Jina's and vLLM's documents that are no text, each with the reason why it is not read."""


class CohereRerankBody(ScoringRequest, kw_only=True):
    """The body of POST /v1/rerank and /v2/rerank, and of /rerank where it has `documents`.

    Longer texts are cut, as Cohere does.

    `max_doc_length` is Jina's word for `max_tokens_per_doc`, `top_k` Voyage's for `top_n`. `max_chunks_per_doc`
    holds: a document is one chunk.
    """

    query: str
    documents: Annotated[str | list[str | Document], FILLED]
    top_n: Top | None = None
    top_k: Top | None = None
    return_documents: bool = False
    max_doc_length: Bound | None = None
    max_chunks_per_doc: Bound | None = None
    truncation: bool | None = None
    rank_fields: Annotated[Any, refusing("send what is to be ranked as each document's text", ["text"])] = None
    return_embeddings: Annotated[Any, refusing("/v1/embeddings gives the vectors of a model that embeds", False)] = None

    @property
    def cut(self) -> Truncation:
        """The truncation of a pair. Raises InvalidInput where two fields disagree about it."""
        cut = super().cut
        if self.truncation is False and cut.truncate:
            raise InvalidInput(f"truncation says that nothing is cut, {TRUNCATE} that it is", field="truncation")
        return cut

    @property
    def document_cut(self) -> Truncation:
        """The truncation of documents, by the lower one of two limits."""
        cut, bound = super().document_cut, self.max_doc_length
        return cut.within(Truncation(max_tokens=bound, field="max_doc_length", bound=True)) if bound else cut


def rerank_request(body: CohereRerankBody) -> RerankRequest:
    """The request for a ranking of the documents. Raises InvalidInput."""
    truncate = body.truncation is not False
    return RerankRequest(
        model=body.model,
        queries=(body.query,),
        documents=_texts_of_documents(body.documents),
        top_n=agreed(body, "top_n", "top_k") or None,
        return_documents=body.return_documents,
        instruction=body.instruction,
        query_cut=replace(body.query_cut, truncate=truncate),
        document_cut=replace(body.document_cut, truncate=truncate),
        sequence_cut=replace(body.cut, truncate=truncate),
        normalization=body.normalization,
    )


def _texts_of_documents(documents: str | list[str | dict[str, Any]]) -> tuple[str, ...]:
    if isinstance(documents, str):
        return (documents,)
    return tuple(
        document if isinstance(document, str) else _text_of_document(document, f"documents[{place}]")
        for place, document in enumerate(documents)
    )


def _text_of_document(document: dict[str, Any], name: str) -> str:
    text = document.get("text")
    if isinstance(text, str):
        return text
    if text is not None:
        raise InvalidInput(f"{name}.text is no string", field=f"{name}.text")
    reason = next((f", and {why}" for field, why in NOT_TEXT.items() if field in document), "")
    raise InvalidInput(f"{name}.text is missing{reason}", field=f"{name}.text")


def rerank_names(body: CohereRerankBody) -> FieldNames:
    """Our names in errors as this body has them: an object's text is one level deeper, a single text has no number."""
    if isinstance(body.documents, str):
        return {**MODEL, "documents[]": "documents"}
    objects = [place for place, document in enumerate(body.documents) if not isinstance(document, str)]
    return {**MODEL, **{f"documents[{place}]": f"documents[{place}].text" for place in objects}}


def rerank_reply(body: CohereRerankBody, reranked: Reranked, request_id: str, version: str) -> HttpReply:
    """The documents with their scores. `version`: that of Cohere's API."""
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": score} for index, score in reranked.ranking]
    if body.return_documents:
        documents = [body.documents] if isinstance(body.documents, str) else body.documents
        for result, text in zip(results, reranked.texts, strict=True):
            document = documents[result["index"]]
            result["document"] = document if isinstance(document, dict) else {"text": text}
    tokens = reranked.answer.tokens.total
    return HttpReply(
        body=to_json(
            {
                "id": body.request_id or request_id,
                "object": "list",
                "model": reranked.answer.model,
                "results": results,
                "usage": usage(tokens),
                "meta": {
                    "api_version": {"version": version},
                    "billed_units": {"search_units": 1},
                    "tokens": {"input_tokens": tokens},
                },
            }
        )
    )


RERANK = Body(CohereRerankBody)


async def rerank(version: str, call: HttpCall) -> HttpReply:
    """Answers POST /v1/rerank and /v2/rerank, by the `version` of Cohere's API, and others with `documents`."""
    body = await call.read(RERANK)
    reranked = await call.ask(call.frontend.ranking.rerank, rerank_request, body, lambda: rerank_names(body))
    write = partial(rerank_reply, body, reranked, call.caller.request_id, version)
    return await call.reply(reranked.answer, reranked.size, write)


RANKING_NAMES: FieldNames = {**MODEL, "documents": "passages", "documents[]": "passages[].text", "query": "query.text"}


class Passage(msgspec.Struct):
    """The query or a passage in the body of POST /v1/ranking: a text."""

    text: str
    image: Annotated[Any, msgspec.Meta(description=f"Refused: {NO_IMAGES}.")] = None


class RankingBody(msgspec.Struct, kw_only=True):
    """The body of POST /v1/ranking."""

    query: Passage
    passages: Annotated[list[Passage], FILLED]
    model: str = ""
    truncate: Literal["NONE", "END"] | None = None


def ranking_request(body: RankingBody) -> RerankRequest:
    """A request for the logits of a cross-encoder, or the scores of another model. Raises InvalidInput."""
    for name, passage in (
        ("query", body.query),
        *((f"passages[{place}]", passage) for place, passage in enumerate(body.passages)),
    ):
        if passage.image is not None:
            raise InvalidInput(f"{name}.image is there, and {NO_IMAGES}", field=f"{name}.image")
    truncate, side = CUTS[body.truncate]
    cut = Truncation(truncate=truncate, side=side)
    return RerankRequest(
        model=body.model,
        queries=(body.query.text,),
        documents=tuple(passage.text for passage in body.passages),
        query_cut=cut,
        document_cut=cut,
        normalization=ScoreNormalization.LOGITS,
    )


def ranking_reply(reranked: Reranked) -> HttpReply:
    rankings = [{"index": index, "logit": score} for index, score in reranked.ranking]
    return HttpReply(body=to_json({"rankings": rankings, "usage": usage(reranked.answer.tokens.total)}))


RANKING = Body(RankingBody)


async def ranking(call: HttpCall) -> HttpReply:
    """Answers POST /v1/ranking, as NVIDIA's NIM has it."""
    body = await call.read(RANKING)
    reranked = await call.ask(call.frontend.ranking.rerank, ranking_request, body, lambda: RANKING_NAMES)
    return await call.reply(reranked.answer, reranked.size, partial(ranking_reply, reranked))


RANKED = {"results": [{"index": 1, "relevance_score": 0.97}, {"index": 0, "relevance_score": 0.02}]}
ROUTES = (
    *(
        Route(
            method="POST",
            path=f"/v{version}/rerank",
            dialect=dialect,
            summary="Documents in the order in which they fit a query",
            body_type=CohereRerankBody,
            example=RANKED,
            endpoint=partial(rerank, version),
        )
        for version, dialect in (("1", OPENAI), ("2", COHERE))
    ),
    *(
        Route(
            method="POST",
            path=f"/v{version}/embed",
            dialect=COHERE,
            summary="A vector for each text, in several types at once",
            body_type=CohereEmbedBody,
            example={"embeddings": example, "texts": ["a text"]},
            endpoint=partial(embed, version),
        )
        for version, example in (("1", [[0.1, -0.2]]), ("2", {"float": [[0.1, -0.2]]}))
    ),
    Route(
        method="POST",
        path="/v1/ranking",
        dialect=OPENAI,
        summary="Passages in the order in which they fit a query, with logits",
        body_type=RankingBody,
        example={"rankings": [{"index": 1, "logit": 3.5}, {"index": 0, "logit": -3.9}]},
        endpoint=ranking,
    ),
)
