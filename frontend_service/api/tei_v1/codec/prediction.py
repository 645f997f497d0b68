"""Predict and PredictPair: messages <-> domain types, both directions side by side."""

from collections.abc import Hashable, Sequence

import numpy as np

from frontend_service.api.tei_v1.codec.fields import counted, cut, empty, options, texts
from frontend_service.domain.requests import ClassifyRequest
from frontend_service.services.classification import Classified
from shared.errors import InvalidInput
from tei.v1 import tei_pb2 as pb

SINGLE, PAIR = 1, 2
"""Texts of a message."""


def predict_request(messages: Sequence[pb.PredictRequest]) -> ClassifyRequest:
    one = messages[0]
    return ClassifyRequest(texts=texts(each.inputs for each in messages), cut=cut(one), normalize=not one.raw_scores)


def pair_options(message: pb.PredictPairRequest) -> Hashable:
    """A text alone is asked for otherwise than a pair."""
    return len(message.inputs), options(message)


def pair_request(messages: Sequence[pb.PredictPairRequest]) -> ClassifyRequest:
    one, count = messages[0], len(messages[0].inputs)
    if count not in (SINGLE, PAIR):
        raise InvalidInput(f"texts[0] has {count} texts, must have 1 or 2", field="texts[0]")
    if count == SINGLE:
        alone = texts(each.inputs[0] for each in messages)
        return ClassifyRequest(texts=alone, cut=cut(one), normalize=not one.raw_scores)
    firsts, seconds = tuple(each.inputs[0] for each in messages), tuple(each.inputs[1] for each in messages)
    for place, pair in enumerate(zip(firsts, seconds, strict=True)):
        if not any(pair):
            raise empty(place)
    return ClassifyRequest(texts=firsts, pairs=seconds, cut=cut(one), normalize=not one.raw_scores)


def predict_replies(request: ClassifyRequest, classified: Classified) -> list[pb.PredictResponse]:
    answer, labels = classified.answer, classified.labels
    replies: list[pb.PredictResponse] = []
    scores = np.frombuffer(answer.result.scores, dtype="<f4").reshape(-1, len(labels))
    given = zip(request.texts, request.pairs or ("",) * len(request.texts), strict=True)
    for pair, tokens, row in zip(given, answer.tokens.lengths, scores, strict=True):
        reply = pb.PredictResponse(metadata=counted(*pair, tokens=tokens))
        for place in np.argsort(-row, kind="stable").tolist():
            reply.predictions.add(score=float(row[place]), label=labels[place])
        replies.append(reply)
    return replies
