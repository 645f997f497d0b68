"""Pairs of texts as a cross-encoder reads them."""

from itertools import pairwise

import fakes
import pytest
from fakes import WORDS, words_of
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing.pairs import CHUNK_TOKENS, PairTexts
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from frontend_service.tokenizing.tokens import TokenizedBatch
from shared.errors import InputTooLong, InvalidInput, LimitExceeded
from shared.vectors import TruncationSide
from support.chunks import run_to_end

LETTERS = st.lists(st.sampled_from("abcdefghij"), max_size=12).map(" ".join)
TEMPLATE = "query : {instruction} {query} passage {document} z :"


def pairs(
    firsts: list[str], seconds: list[str], *, matrix: bool = False, template: str = "", **options: object
) -> TokenizedBatch:
    card = fakes.card(
        pair_template=template.replace("{instruction}", "b"),
        instructed_pair_template=template if "{i" in template else "",
        max_tokens=options.pop("max_tokens", 10),
        truncation_side=options.pop("truncation_side", TruncationSide.RIGHT),
    )
    values: dict[str, object] = {"cut": Truncation(), "entry": "documents[{}]"} | options
    texts = PairTexts(firsts=firsts, seconds=seconds, matrix=matrix, **values)  # type: ignore[arg-type]
    return run_to_end(ModelTokenizer(fakes.tokenizer_json(), card).pairs(texts))


@given(st.lists(LETTERS, min_size=1, max_size=4), st.lists(LETTERS, min_size=1, max_size=4), st.booleans())
def test_pairs_equal_the_tokenizers_own(firsts: list[str], seconds: list[str], truncate: bool) -> None:
    """Every first with every second, row-major: ids, where the second segment begins, what was cut."""
    tokenizer = Tokenizer.from_str(fakes.tokenizer_json().decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    whole = [tokenizer.encode(first, second) for first in firsts for second in seconds]
    if not truncate and max(map(len, whole)) > 10:
        with pytest.raises(InputTooLong, match="limit is 10"):
            pairs(firsts, seconds, matrix=True)
        return
    tokenizer.enable_truncation(10, strategy="longest_first")
    expected = [tokenizer.encode(first, second) for first in firsts for second in seconds]
    batch = pairs(firsts, seconds, matrix=True, cut=Truncation(truncate=True))
    assert words_of(batch.tokens) == [" ".join(encoding.tokens) for encoding in expected]
    assert batch.second_segments == tuple(encoding.type_ids.index(1) for encoding in expected)
    assert batch.truncated == tuple(len(encoding) > 10 for encoding in whole)


@given(LETTERS, LETTERS, st.integers(4, 24), st.sampled_from(TruncationSide))
def test_pairs_are_cut_on_the_side_that_the_tokenizer_would_cut(
    first: str, second: str, limit: int, side: TruncationSide
) -> None:
    """Tokens of the longer text first, on the model's own side, or on the one that is asked for."""
    tokenizer = Tokenizer.from_buffer(fakes.tokenizer_json())
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit, strategy="longest_first", direction=side.name.lower())
    expected = tokenizer.encode(first, second).ids
    for usual, chosen in ((side, None), (TruncationSide.LEFT, side), (TruncationSide.RIGHT, side)):
        cut = Truncation(truncate=True, side=chosen)
        batch = pairs([first], [second], cut=cut, max_tokens=limit, truncation_side=usual)
        assert words_of(batch.tokens) == [" ".join(WORDS[number] for number in expected)]


@pytest.mark.parametrize("template", ["", TEMPLATE])
def test_pairs_are_made_in_slices(template: str) -> None:
    """Of about so many tokens: one long text may meet many short ones, all tokenised at once."""
    card = fakes.card(pair_template=template.replace("{instruction}", ""))
    texts = PairTexts(firsts=["a"], seconds=["b"] * 5000, matrix=True, entry="documents[{}]", cut=Truncation())
    ends = [end for end in ModelTokenizer(fakes.tokenizer_json(), card).pairs(texts) if end]
    assert len(ends) >= 5
    assert max(after - before for before, after in pairwise([0, *ends])) <= CHUNK_TOKENS + 10


def test_the_limit_of_a_side_cannot_be_over_the_models() -> None:
    with pytest.raises(LimitExceeded, match=r"max_tokens_per_query is 11, the model's limit is 10"):
        pairs(["a"], ["b"], first_cut=Truncation(max_tokens=11, field="max_tokens_per_query"))


def test_pairs_one_by_one_with_a_prompt_before_the_first_text() -> None:
    batch = pairs(["a", "b"], ["c d", ""], prompt=PromptChoice(literal="query : "))
    assert words_of(batch.tokens) == ["[CLS] query : a [SEP] c d [SEP]", "[CLS] query : b [SEP] [SEP]"]


def test_each_side_has_a_limit_of_its_own() -> None:
    sides = {
        "first_cut": Truncation(truncate=True, max_tokens=1),
        "second_cut": Truncation(truncate=True, max_tokens=2),
    }
    batch = pairs(["a b"], ["c d e", "f"], matrix=True, **sides)
    assert words_of(batch.tokens) == ["[CLS] a [SEP] c d [SEP]", "[CLS] a [SEP] f [SEP]"]
    assert batch.truncated == (True, True)
    left = pairs(["a b"], ["c d e", "f"], matrix=True, truncation_side=TruncationSide.LEFT, **sides)
    assert words_of(left.tokens) == ["[CLS] b [SEP] d e [SEP]", "[CLS] b [SEP] f [SEP]"]


@pytest.mark.parametrize("template", ["", TEMPLATE])
def test_a_side_over_its_own_limit_is_named(template: str) -> None:
    """The text and the limit, whichever side it is."""
    ask = {"matrix": True, "template": template, "max_tokens": 20}
    with pytest.raises(InputTooLong, match=r"queries\[1\] has 2 tokens, max_tokens_per_query is 1") as first:
        pairs(["a", "b c"], ["c"], first_cut=Truncation(max_tokens=1, field="max_tokens_per_query"), **ask)
    with pytest.raises(InputTooLong, match=r"documents\[2\] has 2 tokens, max_tokens_per_document is 1") as second:
        pairs(["a"], ["b", "c", "d e"], second_cut=Truncation(max_tokens=1, field="max_tokens_per_document"), **ask)
    assert (first.value.field, second.value.field) == ("queries[1]", "documents[2]")


@pytest.mark.parametrize("limit", [40, 41])
@pytest.mark.parametrize("template", ["", TEMPLATE])
def test_a_limit_of_a_side_above_the_pairs_says_nothing(template: str, limit: int) -> None:
    long, bound = "a b c d e f g " * 300, Truncation(truncate=True, max_tokens=2**63, bound=True)
    ask = {"matrix": True, "template": template, "cut": Truncation(truncate=True), "max_tokens": limit}
    without = words_of(pairs([long], [long, "c"], **ask).tokens)
    assert words_of(pairs([long], [long, "c"], **ask, first_cut=bound, second_cut=bound).tokens) == without


def test_a_template_asks_one_text() -> None:
    ask = {"template": TEMPLATE, "matrix": True, "max_tokens": 20}
    assert words_of(pairs(["a"], ["c", "d"], **ask).tokens) == [
        "query : b a passage c z :",
        "query : b a passage d z :",
    ]
    assert words_of(pairs(["a"], ["c"], **ask, prompt=PromptChoice(literal="x y")).tokens) == [
        "query : x y a passage c z :"
    ]
    assert words_of(pairs(["a"], ["c"], **ask, prompt=PromptChoice(literal="")).tokens) == ["query : b a passage c z :"]
    braces = pairs(["{document}"], ["{query}"], **ask)
    assert words_of(braces.tokens) == ["query : b [UNK] passage [UNK] z :"]
    assert braces.second_segments == (0,)


def test_no_token_spans_a_split() -> None:
    """Of the template; what a text has in braces is text. The document is cut, and all parts behind it stay."""
    ask = {"template": "query{split}: {query}{split}{document}{split}z{split} :", "max_tokens": 20}
    assert words_of(pairs(["a"], ["c d"], **ask).tokens) == ["query : a c d z :"]
    joined = ask | {"template": "query : {query}{document}z :"}
    assert words_of(pairs(["a"], ["c d"], **joined).tokens) == ["query : [UNK] [UNK] :"]
    assert words_of(pairs(["a{split}b"], ["c{query}"], **ask).tokens) == ["query : [UNK] [UNK] z :"]
    cut = ask | {"max_tokens": 7, "cut": Truncation(truncate=True)}
    assert words_of(pairs(["a"], ["c d e f"], **cut).tokens) == ["query : a c d z :"]
    told = "query {instruction}{split}{query} {document}"
    batch = pairs(["a"], ["c"], template=told, max_tokens=20, prompt=PromptChoice(literal="{split}x"))
    assert words_of(batch.tokens) == ["query [UNK] a c"]


def test_a_template_keeps_its_end() -> None:
    """The document is cut, not what the model answers after."""
    ask = {"template": TEMPLATE, "cut": Truncation(truncate=True), "max_tokens": 9}
    batch = pairs(["a"], ["c d e f g h"], **ask)
    assert words_of(batch.tokens) == ["query : b a passage c d z :"]
    assert batch.truncated == (True,)
    assert words_of(pairs(["a"], ["c d e f g h"], **ask, truncation_side=TruncationSide.LEFT).tokens) == words_of(
        batch.tokens
    )
    with pytest.raises(InputTooLong, match=r"documents\[1\] and its partner have 10 tokens together, the limit is 9"):
        pairs(["a"], ["c", "d e f"], matrix=True, template=TEMPLATE, max_tokens=9)


def test_a_template_without_a_place_for_it_refuses_an_instruction() -> None:
    with pytest.raises(InvalidInput, match="no place for an instruction"):
        pairs(["a"], ["c"], template="{query} {document}", prompt=PromptChoice(literal="x"))


def test_a_limit_below_what_every_pair_has_is_refused() -> None:
    with pytest.raises(InvalidInput, match="needs 3"):
        pairs(["a"], ["c"], cut=Truncation(truncate=True, max_tokens=3))
    with pytest.raises(InvalidInput, match="needs 2"):
        pairs(["a"], ["c"], template=TEMPLATE, cut=Truncation(truncate=True, max_tokens=2))
    with pytest.raises(InvalidInput, match="the model's limit is 3, what every pair has alone needs 3") as caught:
        pairs(["a"], ["c"], cut=Truncation(truncate=True, max_tokens=4096, bound=True), max_tokens=3)
    assert caught.value.field == ""


@pytest.mark.parametrize("template", ["", TEMPLATE])
def test_sides_that_are_cut_keep_their_places_over_many_chunks(template: str) -> None:
    """Each second text meets each first one, in order."""
    seconds = [f"{letter} z z z z z z z" for letter in "abcdefghij" * 200]
    cut = Truncation(truncate=True, max_tokens=1)
    batch = pairs(["k", "l"], seconds, matrix=True, template=template, max_tokens=20, second_cut=cut)
    shown = [line.split() for line in words_of(batch.tokens)]
    assert [line[3 if template else 1] for line in shown] == ["k"] * 2000 + ["l"] * 2000
    assert [line[5 if template else 3] for line in shown] == [*"abcdefghij" * 400]
