"""Rerank and RerankStream: messages <-> domain types, both directions side by side."""

from collections.abc import Sequence

from frontend_service.api.tei_v1.codec.fields import counted, cut, truncate
from frontend_service.domain.ranking_requests import RerankRequest
from frontend_service.services.ranking import Reranked
from shared.errors import InvalidInput
from tei.v1 import tei_pb2 as pb

SAME = ("query", "truncate", "truncation_direction")
"""What all messages of a RerankStream have in common; of the others, the first one's counts."""


def rerank_request(messages: Sequence[pb.RerankRequest]) -> RerankRequest:
    (one,) = messages
    if not one.query and "" in one.texts:
        place = list(one.texts).index("")
        raise InvalidInput(f"query and documents[{place}] are both empty", field=f"documents[{place}]")
    own = cut(one)
    return RerankRequest(
        queries=(one.query,),
        documents=tuple(one.texts),
        query_cut=own,
        document_cut=own,
        activated=not one.raw_scores,
        return_documents=one.return_text,
    )


def rerank_replies(request: RerankRequest, reranked: Reranked) -> list[pb.RerankResponse]:
    characters = sum(map(len, request.documents)) + len(request.documents) * len(request.queries[0])
    metadata = counted(tokens=sum(reranked.answer.tokens.lengths))
    metadata.compute_chars = characters
    reply = pb.RerankResponse(metadata=metadata)
    for (index, score), text in zip(reranked.ranking, reranked.texts, strict=True):
        reply.ranks.add(index=index, score=score, text=text)
    return [reply]


def first_of_stream(message: pb.RerankStreamRequest) -> pb.RerankRequest:
    """The request that a stream becomes, without its texts."""
    whole = pb.RerankRequest(
        query=message.query,
        raw_scores=message.raw_scores,
        return_text=message.return_text,
        truncation_direction=message.truncation_direction,
    )
    if message.HasField("truncate"):
        whole.truncate = message.truncate
    return whole


def add_of_stream(whole: pb.RerankRequest, message: pb.RerankStreamRequest) -> None:
    """One text more. Raises InvalidInput where it is asked for otherwise than those before it."""
    for field in SAME:
        if _said(message, field) != _said(whole, field):
            place = len(whole.texts)
            raise InvalidInput(f"{field} of message {place} is not that of the messages before it", field=field)
    whole.texts.append(message.text)


def _said(message: pb.RerankStreamRequest | pb.RerankRequest, field: str) -> object:
    """A field of SAME."""
    return truncate(message) if field == "truncate" else getattr(message, field)
