"""Requests tokenised as far as needed, held against the obvious twin that reads every text whole."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import pytest
from examples import examples
from fakes import card
from hypothesis import given
from hypothesis import strategies as st
from kinds import made
from tokenizers import processors

from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing import prefix as reader
from frontend_service.tokenizing import tokenizer as tokenization
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_thread_pool import TimeSlices, run_to_end
from frontend_service.tokenizing.pairs.pairs import PairTexts
from frontend_service.tokenizing.prefix import Need, PrefixRead, PrefixReader
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from shared.errors import InputTooLong, InvalidInput
from shared.vectors import TruncationSide

WORDS = ["the", "them", "words", "12", "é", "<mask>", "  ", "\n", "don't", "xyz" * 5]
TEXT = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)
SEVERAL = st.lists(TEXT, min_size=1, max_size=3)
SIDES = st.sampled_from([None, *TruncationSide])


class Whole(PrefixReader):
    """Reads texts to their ends."""

    def read_batches(
        self, texts: Iterable[str], need: Need | None = None, *, offsets: bool = False
    ) -> Iterator[list[PrefixRead]]:
        return super().read_batches(texts, offsets=offsets)


@lru_cache
def twins(kind: str, limit: int, template: bool = False) -> tuple[ModelTokenizer, ModelTokenizer]:
    """As far as needed, and whole."""
    tokenizer = made(kind, markers=True)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    ids = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B:1 </s>", ids)
    model = card(
        max_tokens=limit,
        include_prompt=False,
        vocabulary_size=10_000,
        pair_template="the {query} words {document} them" if template else "",
    )
    content = tokenizer.to_str().encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenization, "PrefixReader", Whole)
        twin = ModelTokenizer(content, model)
    return ModelTokenizer(content, model), twin


def outcome(slices: TimeSlices[TokenizedBatch]) -> TokenizedBatch | tuple[type[Exception], str]:
    """What they return, or the error and its field."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "TOKEN_LETTERS", 1)  # so that little is read of short texts too
        try:
            return run_to_end(slices)
        except (InputTooLong, InvalidInput) as error:
            return type(error), error.field


@pytest.mark.parametrize("kind", ["BERT", "RoBERTa", "T5", "Llama 2"])
@given(SEVERAL, st.sampled_from(["", "the words 12 the words 12 the : "]), st.integers(4, 30), st.booleans(), SIDES)
@examples(100)
def test_texts(
    kind: str, texts: list[str], prompt: str, limit: int, truncate: bool, side: TruncationSide | None
) -> None:
    """Ids, what was cut, and what is left of the prompt."""
    found, expected = (
        outcome(each.texts(texts, prompt, Truncation(truncate=truncate, max_tokens=limit, side=side), "texts[{}]"))
        for each in twins(kind, 30)
    )
    assert found == expected


@pytest.mark.parametrize("template", [False, True], ids=["two segments", "template"])
@pytest.mark.parametrize("kind", ["BERT", "RoBERTa", "T5", "Llama 2"])
@given(SEVERAL, SEVERAL, st.integers(10, 30), st.booleans(), SIDES, st.sampled_from([None, 3, 9]))
@examples(60)
def test_pairs(
    kind: str,
    template: bool,
    firsts: Sequence[str],
    seconds: Sequence[str],
    limit: int,
    truncate: bool,
    side: TruncationSide | None,
    own: int | None,
) -> None:
    """Of one length and another, with and without a limit of each side."""
    texts = PairTexts(
        firsts=firsts,
        seconds=seconds,
        matrix=True,
        entry="documents[{}]",
        cut=Truncation(truncate=truncate, max_tokens=limit, side=side),
        first_cut=Truncation(truncate=truncate, max_tokens=own),
        second_cut=Truncation(truncate=truncate, max_tokens=own and own + 1, side=side),
        prompt=PromptChoice(),
    )
    found, expected = (outcome(each.pairs(texts)) for each in twins(kind, 30, template))
    assert found == expected
