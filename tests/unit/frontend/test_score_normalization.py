"""What each normalisation of scores means to a model, by the method that compares."""

import pytest
from fakes import card

from frontend_service.domain.requests import ScoreNormalization, ScoreRequest
from frontend_service.postprocess import activation_of
from frontend_service.services.rank import score_work
from shared.vectors import Activation, ScoringMethod


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
    model = card(activation=Activation.TANH, normalizes_multi_vectors=True, averages_late_interaction=False)
    request = ScoreRequest(queries=("a",), documents=("b",), normalization=normalization)
    assert activation_of(model, normalization.activate) is activation
    by_tokens = score_work(request, ScoringMethod.LATE_INTERACTION, model)
    by_vectors = score_work(request, ScoringMethod.DENSE, model)
    assert (by_tokens.unit_rows, by_tokens.mean) == late
    assert (by_vectors.unit_rows, by_vectors.mean) == (dense, False)


def test_a_request_that_averages_by_its_model_keeps_that_with_raw_rows() -> None:
    """Only the length of the rows is what the model gives."""
    model = card(normalizes_multi_vectors=True, averages_late_interaction=True)
    raw = ScoreRequest(queries=("a",), documents=("b",), normalization=ScoreNormalization.LOGITS_AND_RAW_ROWS)
    score = score_work(raw, ScoringMethod.LATE_INTERACTION, model)
    assert (score.unit_rows, score.mean) == (False, True)
