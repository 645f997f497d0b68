"""Encodings that are cut at one end."""

import fakes
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from frontend_service.tokenizing.tokens import shortened
from shared.vectors import TruncationSide

TOKENIZER = Tokenizer.from_buffer(fakes.tokenizer_json())
TOKENIZER.no_padding()
TOKENIZER.no_truncation()


@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(0, 40), st.sampled_from(TruncationSide))
def test_one_end_stays_without_pieces_of_the_other(letters: list[str], length: int, side: TruncationSide) -> None:
    """What is cut off stays in one piece at most, however long it is."""
    whole = TOKENIZER.encode(" ".join(letters), add_special_tokens=False)
    before = whole.ids
    kept = shortened(whole, length, side)
    stay = slice(0, length) if side is TruncationSide.RIGHT else slice(max(0, len(before) - length), None)
    assert (kept.ids, kept.offsets) == (before[stay], whole.offsets[stay])
    assert len(kept.overflowing) <= 1
    assert whole.ids == before
