"""Labels and scores of pairs, from request to job and from logits to answer."""

from typing import Any

import fakes
import numpy as np
import pytest
from http_fields.field import CROSS_ENCODER
from hypothesis import given
from hypothesis import strategies as st

from frontend_service import postprocess
from frontend_service.api.selvage_v1 import codec
from frontend_service.domain.limits import Limits
from frontend_service.domain.requests import ScoreNormalization, ScoreRequest
from frontend_service.postprocess import activation_of
from frontend_service.services.classify import ClassificationService
from frontend_service.services.rank import RankingService, score_work
from selvage.v1 import classification_pb2 as pb
from selvage.v1 import ranking_pb2, vectors_pb2
from shared.caller import RequestTerms
from shared.card import ModelCard
from shared.errors import InvalidInput, LimitExceeded, ResultTooLarge, UnsupportedTask
from shared.vectors import Activation, ScoringMethod, Task

CROSS = CROSS_ENCODER | {"outputs": (), "labels": ("relevant",)}
SIGMOIDS = 1 / (1 + np.exp(-np.array([1, 3, 3, 2.0])))


def card(**changes: object) -> ModelCard:
    return fakes.card(**CROSS | changes)


class Frontend:
    """A service over a fake worker."""

    def __init__(self, model_card: ModelCard, **limits: Any) -> None:
        self.worker = fakes.FakeWorker(model_card)
        self.service = fakes.pipeline_of(self.worker, Limits(**limits))
        self.classification = ClassificationService(self.service)

    async def classify(self, **fields: Any) -> pb.ClassifyResponse:
        request = codec.classify_request_from_pb(pb.ClassifyRequest(**fields))
        return codec.classify_response_to_pb(await self.classification.texts(request, RequestTerms.within(9)))

    async def tokens(self, **fields: Any) -> pb.ClassifyTokensResponse:
        request = codec.classify_tokens_request_from_pb(pb.ClassifyTokensRequest(**fields))
        answer = await self.classification.tokens(request, RequestTerms.within(9))
        return codec.classify_tokens_response_to_pb(answer)

    async def score(self, **fields: Any) -> Any:
        request = codec.score_request_from_pb(ranking_pb2.ScoreRequest(**fields))
        return codec.score_response_to_pb(
            request, await RankingService(self.service).score(request, RequestTerms.within(9))
        )


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=8))
def test_activations(values: list[float]) -> None:
    logits = np.array(values[: len(values) // 2 * 2], dtype="<f4")
    rows = logits.astype(np.float64).reshape(-1, 2)

    def of(activation: Activation) -> np.ndarray:
        return np.frombuffer(postprocess.activate(logits.tobytes(), 2, activation), "<f4").reshape(-1, 2)

    with np.errstate(over="ignore"):
        assert np.allclose(of(Activation.SIGMOID), 1 / (1 + np.exp(-rows)), atol=1e-6)
    assert np.allclose(of(Activation.SOFTMAX)[:, 0], _share(rows), atol=1e-6)
    assert np.allclose(of(Activation.TANH), np.tanh(rows), atol=1e-6)
    assert np.array_equal(of(Activation.IDENTITY), logits.reshape(-1, 2))


def _share(rows: np.ndarray) -> np.ndarray:
    """The softmax of the first of two, written as a sigmoid."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(rows[:, 1] - rows[:, 0]))


async def test_normalize_gives_an_activation_where_the_files_name_none() -> None:
    """Sigmoid for one label, softmax for several; unset means as the files say."""
    ask = {"queries": ["a"], "documents": ["b", "c", "d", "e"]}
    frontend = Frontend(card(activation=Activation.IDENTITY))
    assert list((await frontend.score(**ask)).scores) == [1, 3, 3, 2]
    assert np.allclose((await frontend.score(**ask, normalize=True)).scores, SIGMOIDS)
    several = Frontend(card(activation=Activation.IDENTITY, labels=("x", "y")))
    scores = np.reshape((await several.classify(texts=["a", "b"], normalize=True)).scores, (2, 2))
    assert np.allclose(scores.sum(axis=1), 1)


async def test_tokens_of_one_id() -> None:
    """Only they are scored and shown, with their places."""
    tagger = card(tasks=(Task.CLASSIFY_TOKENS,), methods=(), default_method=None, labels=("x", "y"))
    frontend = Frontend(tagger)
    mark = fakes.WORDS.index("b")
    reply = await frontend.tokens(texts=["a b", "b b c"], token_id=mark, normalize=False)
    assert list(reply.lengths) == [1, 2]
    assert list(reply.token_ids) == [mark] * 3
    assert list(zip(reply.starts, reply.ends, strict=True)) == [(2, 3), (0, 1), (2, 3)]
    assert len(reply.scores) == 6
    every = await frontend.tokens(texts=["a b"])
    assert list(every.lengths) == [4]
    assert (every.starts[0], every.ends[0]) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "fields", "error", "field"),
    [
        ({}, {"texts": []}, InvalidInput, "texts"),
        ({}, {"texts": ["a"], "text_pairs": ["b", "c"]}, InvalidInput, "text_pairs"),
        ({"pair_template": "{query} {document}", "labels": ("yes",)}, {"texts": ["a"]}, InvalidInput, "text_pairs"),
        ({"tasks": (Task.EMBED,)}, {"texts": ["a"]}, UnsupportedTask, "model"),
        ({}, {"texts": ["a"] * 5}, LimitExceeded, "texts"),
        ({}, {"texts": ["a"], "prompt_name": "none"}, UnsupportedTask, "prompt_name"),
    ],
)
async def test_what_cannot_be_classified_is_named(
    changes: dict[str, Any], fields: dict[str, Any], error: type[InvalidInput], field: str
) -> None:
    frontend = Frontend(card(**changes), texts=4)
    with pytest.raises(error) as raised:
        await frontend.classify(**fields)
    assert raised.value.field == field
    assert frontend.worker.jobs == []


async def test_what_tokens_cannot_be_classified_is_named() -> None:
    """A wrong id, a wrong model, a reply over the message."""
    tagger = card(tasks=(Task.CLASSIFY_TOKENS,), labels=("x",) * 10_000)
    with pytest.raises(InvalidInput, match="the vocabulary ends at"):
        await Frontend(tagger).tokens(texts=["a"], token_id=10_000)
    with pytest.raises(UnsupportedTask, match="it is for RERANK, CLASSIFY"):
        await Frontend(card()).tokens(texts=["a"])
    with pytest.raises(ResultTooLarge, match="fewer texts"):
        await Frontend(tagger, message_bytes=100_000).tokens(texts=["a"])
    many = Frontend(card(labels=("x",) * 10_000), message_bytes=100_000)
    with pytest.raises(ResultTooLarge, match="fewer texts"):
        await many.classify(texts=["a"], text_pairs=["b"])
    assert many.worker.jobs == []


@pytest.mark.parametrize("weights", [{"dense": -1}, {"dense": 0}, {"sparse": float("nan")}])
async def test_weights_that_make_no_sense_are_refused(weights: dict[str, float]) -> None:
    """Negative, all zero, no numbers; and weights without HYBRID."""
    message = ranking_pb2.HybridWeights(**weights)
    hybrid = ranking_pb2.ScoreRequest(method=vectors_pb2.SCORING_METHOD_HYBRID, weights=message)
    dense = ranking_pb2.ScoreRequest(method=vectors_pb2.SCORING_METHOD_DENSE, weights=message)
    for request in (hybrid, dense):
        with pytest.raises(InvalidInput) as raised:
            codec.score_request_from_pb(request)
        assert raised.value.field == "weights"


@pytest.mark.parametrize(
    ("normalization", "activation", "late", "dense"),
    [
        (ScoreNormalization.BY_MODEL, Activation.TANH, (True, False), True),
        (ScoreNormalization.FULL, Activation.TANH, (True, True), True),
        (ScoreNormalization.NONE, Activation.IDENTITY, (False, False), False),
        (ScoreNormalization.ACTIVATED, Activation.TANH, (True, False), True),
        (ScoreNormalization.LOGITS, Activation.IDENTITY, (True, False), True),
        (ScoreNormalization.LOGITS_AND_RAW_ROWS, Activation.IDENTITY, (False, False), True),
    ],
)
def test_each_is_resolved_for_its_method(
    normalization: ScoreNormalization, activation: Activation, late: tuple[bool, bool], dense: bool
) -> None:
    """`late`: unit rows and the mean of late interaction; `dense`: unit rows of single vectors."""
    model = fakes.card(activation=Activation.TANH, normalizes_multi_vectors=True, averages_late_interaction=False)
    request = ScoreRequest(queries=("a",), documents=("b",), normalization=normalization)
    assert activation_of(model, normalization.activate) is activation
    by_tokens = score_work(request, ScoringMethod.LATE_INTERACTION, model)
    by_vectors = score_work(request, ScoringMethod.DENSE, model)
    assert (by_tokens.unit_rows, by_tokens.mean) == late
    assert (by_vectors.unit_rows, by_vectors.mean) == (dense, False)


def test_a_request_that_averages_by_its_model_keeps_that_with_raw_rows() -> None:
    """Only the length of the rows is what the model gives."""
    model = fakes.card(normalizes_multi_vectors=True, averages_late_interaction=True)
    raw = ScoreRequest(queries=("a",), documents=("b",), normalization=ScoreNormalization.LOGITS_AND_RAW_ROWS)
    score = score_work(raw, ScoringMethod.LATE_INTERACTION, model)
    assert (score.unit_rows, score.mean) == (False, True)
