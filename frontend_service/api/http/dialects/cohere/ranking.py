"""Reranks of `documents`: Cohere's, with the fields that Jina, Voyage and vLLM add.

Source: docs.cohere.com/reference/rerank, versions 1 and 2; api.jina.ai/openapi.json;
docs.voyageai.com/reference/reranker-api; vLLM's fields are `scoring`'s.
"""

import re
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from frontend_service.api.http.body import FILLED, Body, Bound, Top
from frontend_service.api.http.dialects.openai import usage
from frontend_service.api.http.dialects.pooling_request import NO_IMAGES, REMEDIES, TRUNCATE, agreed
from frontend_service.api.http.dialects.scoring import ScoringRequest
from frontend_service.api.http.refused_fields import refusing
from frontend_service.api.http.reply import HttpReply, to_json
from frontend_service.api.http.route import Endpoint, ExchangeEndpoint, ParsedRequest
from frontend_service.api.renaming import Names
from frontend_service.application.frontend import Frontend
from frontend_service.domain.requests import RerankRequest, Truncation
from frontend_service.services.rank import Reranked
from shared.errors import InvalidInput

_TEXT = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
Document = Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=_TEXT)]
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
        documents=_texts(body.documents),
        top_n=agreed(body, "top_n", "top_k") or None,
        return_documents=body.return_documents,
        instruction=body.instruction,
        query_cut=replace(body.query_cut, truncate=truncate),
        document_cut=replace(body.document_cut, truncate=truncate),
        sequence_cut=replace(body.cut, truncate=truncate),
        normalization=body.normalization,
    )


def _texts(documents: str | list[str | dict[str, Any]]) -> tuple[str, ...]:
    if isinstance(documents, str):
        return (documents,)
    return tuple(
        document if isinstance(document, str) else _text(document, f"documents[{place}]")
        for place, document in enumerate(documents)
    )


def _text(document: dict[str, Any], name: str) -> str:
    text = document.get("text")
    if isinstance(text, str):
        return text
    if text is not None:
        raise InvalidInput(f"{name}.text is no string", field=f"{name}.text")
    reason = next((f", and {why}" for field, why in NOT_TEXT.items() if field in document), "")
    raise InvalidInput(f"{name}.text is missing{reason}", field=f"{name}.text")


def names_of(body: CohereRerankBody) -> Names:
    """Our names in errors as this body has them: an object's text is one level deeper, a single text has no number."""

    def place_of(match: re.Match[str]) -> str:
        if isinstance(body.documents, str):
            return "documents"
        return match[0] if isinstance(body.documents[int(match[1])], str) else f"{match[0]}.text"

    remedy = (r"\btruncate would", "truncation: true would")
    return ((r"\bdocuments\[(\d+)\](?!\.)", place_of), remedy, *REMEDIES)


def rerank_reply(parsed: ParsedRequest[CohereRerankBody, RerankRequest], reranked: Reranked, version: str) -> HttpReply:
    """The documents with their scores. `version`: that of Cohere's API."""
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": score} for index, score in reranked.ranking]
    if parsed.body.return_documents:
        documents = [parsed.body.documents] if isinstance(parsed.body.documents, str) else parsed.body.documents
        for result, text in zip(results, reranked.texts, strict=True):
            document = documents[result["index"]]
            result["document"] = document if isinstance(document, dict) else {"text": text}
    tokens = reranked.answer.tokens.total
    return HttpReply(
        body=to_json(
            {
                "id": parsed.body.request_id or parsed.request_id,
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


def rerank_endpoint(frontend: Frontend, version: str = "2") -> Endpoint:
    """Makes the endpoint of paths that take `documents`."""
    return ExchangeEndpoint(
        frontend,
        Body(CohereRerankBody),
        rerank_request,
        frontend.ranking.rerank,
        lambda parsed, reranked: rerank_reply(parsed, reranked, version),
        names_of=names_of,
    )
