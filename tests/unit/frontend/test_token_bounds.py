"""Token limits of a request: those that must fit the model's, and bounds, which may lie above it."""

import fakes
import pytest

from frontend_service.domain.requests import Truncation
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from shared.errors import LimitExceeded
from shared.vectors import ScoringMethod, Task, TruncationSide

CROSS_ENCODER: dict[str, object] = {
    "tasks": (Task.RERANK, Task.CLASSIFY),
    "labels": ("LABEL_0",),
    "methods": (ScoringMethod.CROSS_ENCODER,),
    "default_method": ScoringMethod.CROSS_ENCODER,
}
LONG = "a b c d e f g h i j k l"


def read(cut: Truncation) -> int:
    """Tokens of a long text that stay."""
    tokenization = ModelTokenizer(fakes.tokenizer_json(), fakes.card())
    return tokenization.texts([LONG], "", cut, "texts[{}]").tokens.total


@pytest.mark.parametrize("most", [11, 512, 2**31 - 1])
def test_a_bound_above_the_models_limit_is_that_limit(most: int) -> None:
    assert read(Truncation(truncate=True, max_tokens=most, bound=True)) == 10
    with pytest.raises(LimitExceeded, match=f"max_tokens is {most}, the model's limit is 10"):
        read(Truncation(truncate=True, max_tokens=most))


def test_a_bound_below_it_is_kept() -> None:
    assert read(Truncation(truncate=True, max_tokens=4, bound=True)) == 4


def test_two_cuts_at_once_are_the_lower_limit_and_whatever_either_allows() -> None:
    wide, narrow = (
        Truncation(max_tokens=9, field="wide"),
        Truncation(truncate=True, max_tokens=4, field="narrow", bound=True),
    )
    for both in (wide.within(narrow), narrow.within(wide)):
        assert (both.max_tokens, both.field, both.truncate, both.bound) == (4, "narrow", True, True)
    assert Truncation().within(Truncation(side=TruncationSide.LEFT)) == Truncation(side=TruncationSide.LEFT)
    assert wide.within(Truncation(max_tokens=0)).max_tokens == Truncation(max_tokens=0).within(wide).max_tokens == 0
    assert Truncation(truncate=True).within(wide) == Truncation(truncate=True, max_tokens=9, field="wide")
