"""Messages of tei.v1 about labels, pairs and rankings <-> domain types."""

from typing import Any

import numpy as np
import pytest
from tei_answers import LEFT, answer

from frontend_service.api.tei_v1 import messages as codec
from frontend_service.domain.requests import ScoreNormalization, Truncation
from frontend_service.services.classify import Classified
from shared.errors import InvalidInput
from shared.vectors import TruncationSide
from tei.v1 import tei_pb2 as pb


def test_labels_come_best_first() -> None:
    request = codec.predict_request_from_pb(pb.PredictRequest(inputs="ab"))
    scores = np.array([0.25, 0.5, 0.25], dtype="<f4").tobytes()
    reply = codec.predict_response_to_pb(request, Classified(answer=answer(4, scores=scores), labels=("x", "y", "z")))
    assert [(each.label, each.score) for each in reply.predictions] == [("y", 0.5), ("x", 0.25), ("z", 0.25)]
    assert reply.metadata == pb.Metadata(compute_chars=2, compute_tokens=4)


def test_labels_of_one_score_come_in_the_order_of_their_logits() -> None:
    """A sigmoid of 20 and more is 1 in float32."""
    request = codec.predict_request_from_pb(pb.PredictRequest(inputs="ab"))
    scores, logits = (np.array(row, dtype="<f4").tobytes() for row in ([1, 1, 1], [20, 60, 40]))
    classified = Classified(answer=answer(4, scores=scores, logits=logits), labels=("x", "y", "z"))
    reply = codec.predict_response_to_pb(request, classified)
    assert [each.label for each in reply.predictions] == ["y", "z", "x"]


@pytest.mark.parametrize("raw", [False, True])
def test_raw_scores_are_logits(raw: bool) -> None:
    options: dict[str, Any] = {"raw_scores": raw, "truncate": True, "truncation_direction": LEFT}
    cut = Truncation(truncate=True, side=TruncationSide.LEFT)
    single = codec.predict_request_from_pb(pb.PredictRequest(inputs="a", **options))
    pair = codec.predict_pair_request_from_pb(pb.PredictPairRequest(inputs=["a", "b"], **options))
    ranked = codec.rerank_request_from_pb(pb.RerankRequest(query="a", texts=["b"], **options))
    assert (single.normalize, pair.normalize) == (not raw, not raw)
    assert ranked.normalization is (ScoreNormalization.LOGITS if raw else ScoreNormalization.ACTIVATED)
    assert single.cut == pair.cut == ranked.query_cut == ranked.document_cut == cut
    assert (pair.texts, pair.pairs) == (("a",), ("b",))


@pytest.mark.parametrize("inputs", [[], ["a", "b", "c"]])
def test_a_pair_is_one_text_or_two(inputs: list[str]) -> None:
    with pytest.raises(InvalidInput, match="must have 1 or 2"):
        codec.predict_pair_request_from_pb(pb.PredictPairRequest(inputs=inputs))


def test_a_stream_of_texts_becomes_one_rerank() -> None:
    messages = [
        pb.RerankStreamRequest(query="q", text="a", truncate=True, raw_scores=True, return_text=True),
        pb.RerankStreamRequest(query="q", text="b", truncate=True),
    ]
    whole = codec.begin_rerank_request(messages[0])
    for message in messages:
        codec.add_stream_text(whole, message)
    assert whole == pb.RerankRequest(query="q", texts=["a", "b"], truncate=True, raw_scores=True, return_text=True)
    for other in ({"query": "r", "truncate": True}, {"query": "q"}):
        with pytest.raises(InvalidInput, match="message 2 is not that of the messages before it"):
            codec.add_stream_text(whole, pb.RerankStreamRequest(text="c", **other))


def test_query_and_text_are_not_both_empty() -> None:
    assert codec.rerank_request_from_pb(pb.RerankRequest(texts=["a"])).queries == ("",)
    assert codec.rerank_request_from_pb(pb.RerankRequest(query="q", texts=[""])).documents == ("",)
    with pytest.raises(InvalidInput) as raised:
        codec.rerank_request_from_pb(pb.RerankRequest(texts=["a", ""]))
    assert raised.value.field == "documents[1]"
