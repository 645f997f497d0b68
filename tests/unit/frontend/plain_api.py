"""A second API, as small as one can be: dictionaries in, dictionaries out. Knows no gRPC and no protobuf."""

from dataclasses import asdict
from typing import Any

from frontend_service.application.frontend import Exchange, Frontend
from frontend_service.domain.answer import Answer
from frontend_service.domain.requests import EmbedRequest, RerankRequest
from frontend_service.services.rank import Reranked
from shared.caller import REQUEST_ID, Caller, chosen_id
from shared.errors import SelvageError

Body = dict[str, Any]


def read_embed(body: Body) -> EmbedRequest:
    return EmbedRequest(texts=tuple(body.get("texts", ())), model=body.get("model", ""))


def write_embed(_: EmbedRequest, answer: Answer) -> Body:
    assert answer.result.dense is not None
    return {"model": answer.model, "data": answer.result.dense.data, "token_counts": list(answer.tokens.lengths)}


def read_rerank(body: Body) -> RerankRequest:
    return RerankRequest(
        queries=(body["query"],),
        documents=tuple(body["documents"]),
        top_n=body.get("top_n"),
        return_documents=body.get("return_documents", False),
    )


def write_rerank(_: RerankRequest, reranked: Reranked) -> Body:
    results = zip(reranked.ranking, reranked.texts, strict=True)
    return {"results": [{"index": index, "score": score, "document": text} for (index, score), text in results]}


class PlainApi:
    """Answers, or tells the error, of every call."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._exchanges: dict[str, Exchange[Body, Any, Any, Body]] = {
            "Embed": Exchange(read=read_embed, call_service=frontend.embedding.embed, write=write_embed),
            "Rerank": Exchange(read=read_rerank, call_service=frontend.ranking.rerank, write=write_rerank),
        }

    async def call(self, method: str, body: Body, given_id: str = "", remaining: float | None = None) -> Body:
        """`given_id`: the request id that the caller chose."""
        exchange = self._exchanges[method]

        caller = Caller(method=method, request_id=chosen_id([(REQUEST_ID, given_id)]), remaining=remaining)

        async def work() -> Body:
            reply, timing = await self._frontend.exchange(exchange, body, len(str(body)), caller)
            return reply | {"timing": asdict(timing)}

        try:
            return await self._frontend.calls.answer(caller, work)
        except SelvageError as error:
            return {"status": error.status, "reason": error.reason, "field": error.field, "retry": error.retry_after}
