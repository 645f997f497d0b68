"""What a worker's card may say: odd things that a model's files say too are no lies."""

import pytest
from fakes import card

from frontend_service.workers.claims import check_card
from frontend_service.workers.reply_check import WrongReply


@pytest.mark.parametrize(
    "changes",
    [
        {"special_tokens": {"bos": 10**6, "eos": 10**6 + 1}},  # of a tokenizer's class, beyond the embeddings
        {"allowed_dimensions": (4, 8, 16)},  # of the base model, wider than its last layer
    ],
)
def test_a_card_says_what_the_files_say(changes: dict[str, object]) -> None:
    """Requests are checked against what the model does, whatever these are."""
    assert check_card(card(**changes)) == card(**changes)


@pytest.mark.parametrize("changes", [{"special_tokens": {"bos": -1}}, {"allowed_dimensions": (0,)}, {"max_tokens": 0}])
def test_a_card_of_impossible_numbers_is_refused(changes: dict[str, object]) -> None:
    """By name."""
    with pytest.raises(WrongReply, match=next(iter(changes))):
        check_card(card(**changes))
