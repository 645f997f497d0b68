"""Answers and options of which tests make messages of tei.v1."""

from array import array
from typing import Any

from frontend_service.services.pipeline import Answer
from shared.jobs import JobResult, RaggedTokens
from tei.v1 import tei_pb2 as pb

LEFT, RIGHT = pb.TRUNCATION_DIRECTION_LEFT, pb.TRUNCATION_DIRECTION_RIGHT


def answer(*lengths: int, logits: bytes = b"", **result: Any) -> Answer:
    """Of texts with so many tokens. `logits`: what the scores were made of; none: they are as the model gave them."""
    return Answer(
        model="fake",
        result=JobResult(**result),
        ranked_by=logits or result.get("scores", b""),
        tokens=RaggedTokens.packed(array("i", range(sum(lengths))), lengths),
        truncated=(False,) * len(lengths),
        token_counts=lengths,
        tokenize=0.0,
        transfer=0.0,
        answered=0.0,
    )
