"""A second API, as small as one can be: dictionaries in, dictionaries out. Knows no gRPC and no protobuf."""

from dataclasses import asdict
from functools import partial
from typing import Any

from frontend_service.domain.requests import EmbedRequest, RerankRequest
from frontend_service.frontend import Frontend
from frontend_service.services.pipeline import Answer
from frontend_service.services.rank import Reranked
from shared import trace_context
from shared.caller import Caller
from shared.errors import SelvageError

Body = dict[str, Any]


def read_embed(body: Body) -> EmbedRequest:
    return EmbedRequest(texts=tuple(body.get("texts", ())), model=body.get("model", ""))


def write_embed(answer: Answer) -> Body:
    assert answer.result.dense is not None
    return {"model": answer.model, "data": answer.result.dense.data, "token_counts": list(answer.tokens.lengths)}


def read_rerank(body: Body) -> RerankRequest:
    return RerankRequest(
        queries=(body["query"],),
        documents=tuple(body["documents"]),
        top_n=body.get("top_n"),
        return_documents=body.get("return_documents", False),
    )


def write_rerank(reranked: Reranked) -> Body:
    results = zip(reranked.ranking, reranked.texts, strict=True)
    return {"results": [{"index": index, "score": score, "document": text} for (index, score), text in results]}


class PlainApi:
    """Answers, or tells the error, of every call."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def embed(self, body: Body, caller: Caller) -> Body:
        pipeline, terms = self._frontend.pipeline, self._frontend.calls.terms(caller)
        request = await pipeline.offload(len(str(body)), read_embed, body)
        answer = await self._frontend.embedding.embed(request, terms)
        reply, timing = await pipeline.reply(answer, answer.size, partial(write_embed, answer))
        return reply | {"timing": asdict(timing)}

    async def rerank(self, body: Body, caller: Caller) -> Body:
        pipeline, terms = self._frontend.pipeline, self._frontend.calls.terms(caller)
        request = await pipeline.offload(len(str(body)), read_rerank, body)
        reranked = await self._frontend.ranking.rerank(request, terms)
        reply, timing = await pipeline.reply(reranked.answer, reranked.size, partial(write_rerank, reranked))
        return reply | {"timing": asdict(timing)}

    async def call(self, method: str, body: Body, given_id: str = "", remaining: float | None = None) -> Body:
        """`given_id`: the request id that the caller chose."""
        caller = Caller(method=method, request_id=trace_context.chosen([given_id]), remaining=remaining)
        answer = {"Embed": self.embed, "Rerank": self.rerank}[method]
        try:
            return await self._frontend.calls.answer(caller, partial(answer, body, caller))
        except SelvageError as error:
            return {"status": error.status, "reason": error.reason, "field": error.field, "retry": error.retry_after}
