"""Pairs of texts as a cross-encoder reads them."""

from itertools import pairwise

import fakes
import pytest
from fakes import WORDS
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing.pairs import CHUNK_TOKENS, PairTexts, longest_first
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


def words_of(tokenized: TokenizedBatch) -> list[str]:
    ids = memoryview(tokenized.tokens.ids).cast("i")
    offsets = tokenized.tokens.offsets
    return [" ".join(WORDS[each] for each in ids[a:b]) for a, b in pairwise(offsets)]


@given(st.integers(0, 12), st.integers(0, 12), st.integers(2, 20))
def test_the_longer_text_loses_tokens_first(first: int, second: int, room: int) -> None:
    tokenizer = Tokenizer.from_str(fakes.tokenizer_json().decode())
    tokenizer.no_padding()
    tokenizer.enable_truncation(room + 3, strategy="longest_first")
    ids = tokenizer.encode(" ".join("a" * first), " ".join("b" * second)).ids
    kept = tuple(ids.count(WORDS.index(letter)) for letter in "ab")
    assert longest_first(first, second, room) == kept


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
    found = pairs(firsts, seconds, matrix=True, cut=Truncation(truncate=True))
    assert words_of(found) == [" ".join(each.tokens) for each in expected]
    assert found.second_segments == tuple(each.type_ids.index(1) for each in expected)
    assert found.truncated == tuple(len(each) > 10 for each in whole)


@given(LETTERS, LETTERS, st.integers(4, 24), st.sampled_from(TruncationSide))
def test_pairs_are_cut_on_the_side_that_the_tokenizer_would_cut(
    first: str, second: str, limit: int, side: TruncationSide
) -> None:
    """Tokens of the longer text first, on the model's own side, or on the one that is asked for."""
    tokenizer = Tokenizer.from_buffer(fakes.tokenizer_json())
    tokenizer.no_padding()
    tokenizer.enable_truncation(limit, strategy="longest_first", direction=side.name.lower())
    expected = tokenizer.encode(first, second).ids
    for own, asked in ((side, None), (TruncationSide.LEFT, side), (TruncationSide.RIGHT, side)):
        cut = Truncation(truncate=True, side=asked)
        found = pairs([first], [second], cut=cut, max_tokens=limit, truncation_side=own)
        assert words_of(found) == [" ".join(WORDS[each] for each in expected)]


@pytest.mark.parametrize("template", ["", TEMPLATE])
def test_pairs_are_made_in_slices(template: str) -> None:
    """Of about so many tokens: one long text may meet many short ones, all tokenised at once."""
    card = fakes.card(pair_template=template.replace("{instruction}", ""))
    texts = PairTexts(firsts=["a"], seconds=["b"] * 5000, matrix=True, entry="documents[{}]", cut=Truncation())
    told = [each for each in ModelTokenizer(fakes.tokenizer_json(), card).pairs(texts) if each]
    assert len(told) >= 5
    assert max(after - before for before, after in pairwise([0, *told])) <= CHUNK_TOKENS + 10


def test_the_limit_of_a_side_cannot_be_over_the_models() -> None:
    with pytest.raises(LimitExceeded, match=r"max_tokens_per_query is 11, the model's limit is 10"):
        pairs(["a"], ["b"], first_cut=Truncation(max_tokens=11, field="max_tokens_per_query"))


def test_one_by_one() -> None:
    assert words_of(pairs(["a", "b"], ["c d", ""])) == ["[CLS] a [SEP] c d [SEP]", "[CLS] b [SEP] [SEP]"]


def test_a_prompt_goes_before_the_first_text() -> None:
    found = pairs(["a"], ["c"], prompt=PromptChoice(literal="query : "))
    assert words_of(found) == ["[CLS] query : a [SEP] c [SEP]"]


def test_each_side_has_a_limit_of_its_own() -> None:
    sides = {
        "first_cut": Truncation(truncate=True, max_tokens=1),
        "second_cut": Truncation(truncate=True, max_tokens=2),
    }
    found = pairs(["a b"], ["c d e", "f"], matrix=True, **sides)
    assert words_of(found) == ["[CLS] a [SEP] c d [SEP]", "[CLS] a [SEP] f [SEP]"]
    assert found.truncated == (True, True)
    left = pairs(["a b"], ["c d e", "f"], matrix=True, truncation_side=TruncationSide.LEFT, **sides)
    assert words_of(left) == ["[CLS] b [SEP] d e [SEP]", "[CLS] b [SEP] f [SEP]"]


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
    without = words_of(pairs([long], [long, "c"], **ask))
    assert words_of(pairs([long], [long, "c"], **ask, first_cut=bound, second_cut=bound)) == without


def test_a_template_asks_one_text() -> None:
    ask = {"template": TEMPLATE, "matrix": True, "max_tokens": 20}
    assert words_of(pairs(["a"], ["c", "d"], **ask)) == ["query : b a passage c z :", "query : b a passage d z :"]
    assert words_of(pairs(["a"], ["c"], **ask, prompt=PromptChoice(literal="x y"))) == ["query : x y a passage c z :"]
    assert words_of(pairs(["a"], ["c"], **ask, prompt=PromptChoice(literal=""))) == ["query : b a passage c z :"]
    braces = pairs(["{document}"], ["{query}"], **ask)
    assert words_of(braces) == ["query : b [UNK] passage [UNK] z :"]
    assert braces.second_segments == (0,)


def test_a_template_keeps_its_end() -> None:
    """The document is cut, not what the model answers after."""
    ask = {"template": TEMPLATE, "cut": Truncation(truncate=True), "max_tokens": 9}
    found = pairs(["a"], ["c d e f g h"], **ask)
    assert words_of(found) == ["query : b a passage c d z :"]
    assert found.truncated == (True,)
    assert words_of(pairs(["a"], ["c d e f g h"], **ask, truncation_side=TruncationSide.LEFT)) == words_of(found)
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
    found = pairs(["k", "l"], seconds, matrix=True, template=template, max_tokens=20, second_cut=cut)
    shown = [each.split() for each in words_of(found)]
    assert [line[3 if template else 1] for line in shown] == ["k"] * 2000 + ["l"] * 2000
    assert [line[5 if template else 3] for line in shown] == [*"abcdefghij" * 400]
