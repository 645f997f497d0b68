"""NVIDIA's NIM for reranking: /v1/ranking.

Source: docs.nvidia.com/nim/nemo-retriever/text-reranking, "API reference", 2.x.
"""

from typing import Annotated, Any, Literal

import msgspec

from frontend_service.api.field_names import FieldNames, fields_as
from frontend_service.api.http.errors import OPENAI
from frontend_service.api.http.fields import FILLED, Body
from frontend_service.api.http.openai import usage
from frontend_service.api.http.replies import HttpReply, to_json
from frontend_service.api.http.route import HttpCall, Route
from frontend_service.api.http.vllm_fields import MODEL, NO_IMAGES
from frontend_service.domain.requests import RerankRequest, ScoreNormalization, Truncation
from frontend_service.services.rank import Reranked
from shared.errors import InvalidInput
from shared.vectors import TruncationSide

NAMES: FieldNames = {**MODEL, "documents": "passages", "documents[]": "passages[].text", "query": "query.text"}
TRUNCATE = {None: None, "NONE": False, "END": True}


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
    truncation = Truncation(
        truncate=TRUNCATE[body.truncate], side=TruncationSide.RIGHT if body.truncate == "END" else None
    )
    return RerankRequest(
        model=body.model,
        queries=(body.query.text,),
        documents=tuple(passage.text for passage in body.passages),
        query_cut=truncation,
        document_cut=truncation,
        normalization=ScoreNormalization.LOGITS,
    )


def ranking_reply(reranked: Reranked) -> HttpReply:
    rankings = [{"index": index, "logit": score} for index, score in reranked.ranking]
    return HttpReply(body=to_json({"rankings": rankings, "usage": usage(reranked.answer.tokens.total)}))


RANKING = Body(RankingBody)


async def ranking(call: HttpCall) -> HttpReply:
    """Answers POST /v1/ranking."""
    body = await call.read(RANKING)
    with fields_as(lambda: NAMES):
        request = await call.convert(ranking_request, body)
        reranked = await call.frontend.ranking.rerank(request, call.terms)
    return await call.reply(reranked.answer, reranked.size, lambda: ranking_reply(reranked))


ROUTES = (
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
