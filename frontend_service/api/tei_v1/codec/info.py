"""What is served, as Info tells it."""

from importlib.metadata import PackageNotFoundError, version

from frontend_service.services.models import ModelDescription
from shared.card import ModelCard
from shared.vectors import ScoringMethod, Task
from tei.v1 import tei_pb2 as pb


def info_response(described: ModelDescription, requests: int, threads: int) -> pb.InfoResponse:
    """`requests`: that are answered at once; `threads`: that tokenise."""
    card, limits = described.card, described.limits
    return pb.InfoResponse(
        version=_version(),
        model_id=card.id,
        model_dtype=card.dtype,
        model_type=model_type(card),
        max_concurrent_requests=requests,
        max_input_length=card.max_tokens,
        max_batch_tokens=min(limits.request_tokens, described.queued_tokens),
        max_client_batch_size=min(limits.texts, limits.documents),
        tokenization_workers=threads,
    )


def model_type(card: ModelCard) -> pb.ModelType:
    """The first that holds of reranker, classifier, embedding."""
    if ScoringMethod.CROSS_ENCODER in card.methods:
        return pb.MODEL_TYPE_RERANKER
    return pb.MODEL_TYPE_CLASSIFIER if Task.CLASSIFY in card.tasks else pb.MODEL_TYPE_EMBEDDING


def _version() -> str:
    try:
        return version("selvage-serving")
    except PackageNotFoundError:  # run from its sources
        return "0"
