"""Bodies with `texts` of /rerank, and their replies."""

from typing import Annotated, Any

from frontend_service.api.http.body import FILLED, Top
from frontend_service.api.http.dialects.tei.common import OPTIONS, CuttableRequest, counted_reply
from frontend_service.api.http.reply import HttpReply
from frontend_service.api.http.route import ParsedRequest
from frontend_service.api.renaming import Names
from frontend_service.domain.requests import RerankRequest, ScoreNormalization
from frontend_service.services.rank import Reranked
from shared.errors import InvalidInput

NAMES: Names = (
    (r"return_documents", "return_text"),
    (r"\bdocuments\b", "texts"),
    *OPTIONS,
)


class RerankBody(CuttableRequest, kw_only=True):
    """The body of POST /rerank, where it has `texts`. `top_n` is llama.cpp's."""

    query: str
    texts: Annotated[list[str], FILLED]
    raw_scores: bool = False
    return_text: bool = False
    top_n: Top | None = None


def rerank_request(body: RerankBody) -> RerankRequest:
    if not body.query and "" in body.texts:
        place = body.texts.index("")
        raise InvalidInput(f"query and texts[{place}] are both empty", field=f"texts[{place}]")
    return RerankRequest(
        model=body.model,
        queries=(body.query,),
        documents=tuple(body.texts),
        top_n=body.top_n or None,
        query_cut=body.cut,
        document_cut=body.cut,
        normalization=ScoreNormalization.LOGITS if body.raw_scores else ScoreNormalization.ACTIVATED,
        return_documents=body.return_text,
    )


def rerank_reply(parsed: ParsedRequest[RerankBody, RerankRequest], reranked: Reranked) -> HttpReply:
    ranks: list[dict[str, Any]] = [{"index": index, "score": score} for index, score in reranked.ranking]
    if parsed.body.return_text:
        for rank, text in zip(ranks, reranked.texts, strict=True):
            rank["text"] = text
    return counted_reply(reranked.answer, ranks)
