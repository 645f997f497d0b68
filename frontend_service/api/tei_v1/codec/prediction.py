"""Messages of Predict and PredictPair <-> domain types, both directions side by side.

The messages of a group have equal options, so that those of the first one count.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from frontend_service.api.tei_v1.codec.fields import (
    compute_metadata,
    empty_text_error,
    options_key,
    texts_from_pb,
    truncation_from_pb,
)
from frontend_service.domain.requests import ClassifyRequest
from frontend_service.services.classify import Classified
from shared.errors import InvalidInput
from tei.v1 import tei_pb2 as pb

SINGLE, PAIR = 1, 2
"""Number of texts of a message."""


def predict_request_from_pb(messages: Sequence[pb.PredictRequest]) -> ClassifyRequest:
    return _classify_request(messages[0], texts_from_pb(message.inputs for message in messages))


def pair_options(message: pb.PredictPairRequest) -> Hashable:
    """The options of a message, and its number of texts: single texts and pairs share no group."""
    return len(message.inputs), options_key(message)


def predict_pair_request_from_pb(messages: Sequence[pb.PredictPairRequest]) -> ClassifyRequest:
    first, count = messages[0], len(messages[0].inputs)
    if count not in (SINGLE, PAIR):
        raise InvalidInput(f"texts[0] has {count} texts, must have 1 or 2", field="texts[0]")
    if count == SINGLE:
        return _classify_request(first, texts_from_pb(message.inputs[0] for message in messages))
    texts, pairs = tuple(message.inputs[0] for message in messages), tuple(message.inputs[1] for message in messages)
    for place, pair in enumerate(zip(texts, pairs, strict=True)):
        if not any(pair):
            raise empty_text_error(place)
    return _classify_request(first, texts, pairs)


def _classify_request(
    first: pb.PredictRequest | pb.PredictPairRequest, texts: tuple[str, ...], pairs: tuple[str, ...] = ()
) -> ClassifyRequest:
    """`first`: the message whose options count."""
    return ClassifyRequest(texts=texts, pairs=pairs, cut=truncation_from_pb(first), normalize=not first.raw_scores)


def predict_responses_to_pb(request: ClassifyRequest, classified: Classified) -> list[pb.PredictResponse]:
    answer, labels = classified.answer, classified.labels
    replies: list[pb.PredictResponse] = []
    scores = np.frombuffer(answer.result.scores, dtype="<f4").reshape(-1, len(labels))
    pairs = zip(request.texts, request.pairs or ("",) * len(request.texts), strict=True)
    rows = zip(pairs, answer.tokens.lengths, scores, classified.best_first, strict=True)
    for pair, tokens, row, order in rows:
        reply = pb.PredictResponse(metadata=compute_metadata(*pair, tokens=tokens))
        for label in order.tolist():
            reply.predictions.add(score=float(row[label]), label=labels[label])
        replies.append(reply)
    return replies
