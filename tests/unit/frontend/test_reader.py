"""Texts read as far as a limit lets one see, held against all of them read and then cut."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from kinds import KINDS, made
from tokenizers import AddedToken, Encoding, Tokenizer, models, normalizers, pre_tokenizers

from frontend_service.tokenizing import prefix as reader
from frontend_service.tokenizing.prefix import SLICE_LETTERS, TOKEN_LETTERS, Need, PrefixReader
from frontend_service.tokenizing.split_points import SplitPoints
from shared.errors import LimitExceeded
from shared.vectors import TruncationSide

PIECES = [
    *(
        "the",
        "them",
        "word",
        "wor",
        "12",
        "345",
        "a",
        "é",
        "e\u0301",
        "\u0301",
        "中文",
        "字",
        "漢字仮名",
        "一",
        "𠀀",
        "か",
        "豈",
        "don't",
        "ﷺ",
        "ﹰ",
        "İ",
        "\u0600",
    ),
    *(
        " ",
        " ",
        " ",
        " ",
        "  ",
        "    ",
        "\n",
        "\t",
        "\u3000",
        "\u200b",
        "\xa0",
        "▁",
        "``",
        ",",
        ".",
        "—",
        "<mask>",
        "</s>",
        "[Q] ",
    ),
    *("the word", "of the other words, ", "x" * 40, "क्षि", "가나", "ཀྵ", "㎏"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join) | st.lists(st.sampled_from(PIECES)).map(" ".join)


@lru_cache
def tokenizer_of(kind: str, markers: bool) -> Tokenizer:
    return made(kind, markers=markers)


def kept(encoding: Encoding, need: Need, start: int = 0) -> tuple[list[int], list[tuple[int, int]]]:
    """The tokens that a cut leaves, and where they lie."""
    count = min(len(encoding), need.tokens)
    part = slice(0, count) if need.cut_side is TruncationSide.RIGHT else slice(len(encoding) - count, None)
    return encoding.ids[part], [(first + start, last + start) for first, last in encoding.offsets[part]]


@pytest.mark.parametrize("markers", [False, True], ids=["plain", "with added tokens"])
@pytest.mark.parametrize("kind", KINDS)
@given(TEXTS, st.integers(1, 12), st.sampled_from(TruncationSide), st.sampled_from([1, TOKEN_LETTERS]))
@examples(40)
def test_what_is_read_equals_all_of_it_cut(
    kind: str, markers: bool, text: str, tokens: int, cut: TruncationSide, letters: int
) -> None:
    """Ids, offsets and whether something was left, for every kind and side, added tokens in the text as well.

    However little is read at first.
    """
    tokenizer = tokenizer_of(kind, markers)
    need, whole = Need(tokens=tokens, cut_side=cut), tokenizer.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "TOKEN_LETTERS", letters)
        found = PrefixReader(tokenizer).read(text, need, offsets=True)
        fast = PrefixReader(tokenizer).read(text, need)
    assert kept(found.encoding, need, found.start) == kept(whole, need)
    assert kept(fast.encoding, need)[0] == kept(whole, need)[0]
    assert len(found.encoding) == len(whole) if found.whole else len(whole) >= tokens
    assert len(found.encoding) >= min(tokens, len(whole))


@pytest.mark.parametrize("kind", KINDS)
@given(TEXTS, st.integers(1, 12), st.sampled_from(TruncationSide), st.integers(1, 200))
@examples(40)
def test_of_a_text_over_a_size_no_more_is_read(
    kind: str, text: str, tokens: int, cut: TruncationSide, most: int
) -> None:
    """The tokens are those of all of it, or it is told that they cannot be had; a shorter text is read as ever."""
    tokenizer = tokenizer_of(kind, True)
    need, whole = Need(tokens=tokens, cut_side=cut, most_bytes=most), tokenizer.encode(text)
    seen: list[str] = []

    class Seen(PrefixReader):
        """Remembers what it tokenises."""

        def _encode(self, texts: Sequence[str], offsets: bool = False) -> list[Encoding]:
            seen.extend(texts)
            return super()._encode(texts, offsets)

    found = Seen(tokenizer).read(text, need, offsets=True)
    over = len(text.encode()) > most
    assert max(len(part.encode()) for part in seen) <= (most if over else len(text.encode()))
    if over and found.refused_bytes:
        assert found.refused_bytes == most
        with pytest.raises(LimitExceeded, match=r"texts\[3\] has more bytes than the limit"):
            found.check("texts[3]")
        return
    found.check("texts[3]")
    assert not (over and found.whole)
    assert kept(found.encoding, need, found.start) == kept(whole, need)


@pytest.mark.parametrize("markers", [False, True], ids=["plain", "with added tokens"])
@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.integers(0, 40))
@examples(40)
def test_a_parted_text_has_the_tokens_of_its_halves(kind: str, markers: bool, text: str, letters: int) -> None:
    """One after the other, at every place where it may be parted; behind the first word for the second half."""
    tokenizer = tokenizer_of(kind, markers)
    parting, ids = SplitPoints(tokenizer), tokenizer.encode(text).ids
    place = parting.end_of_prefix(text, letters)
    if place is not None:
        first = tokenizer.encode(text[:place]).ids
        assert ids[: len(first)] == first
    places = parting.start_of_suffix(text, letters)
    if places is not None:
        word, second = (tokenizer.encode(text[places[0] : stop]).ids for stop in (places[1], None))
        trusted = second[len(word) :]
        assert ids[len(ids) - len(trusted) :] == trusted


@pytest.mark.parametrize("letters", [1, 2, TOKEN_LETTERS])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_word_of_what_is_read_is_not_trusted(
    kind: str, letters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a text's start, some tokenizers put a mark before a word, or take a space away."""
    tokenizer, text = tokenizer_of(kind, False), "the them wor xyz 12 " * 40 + "the them"
    whole = tokenizer.encode(text)
    monkeypatch.setattr(reader, "TOKEN_LETTERS", letters)
    for tokens, cut in product(range(1, 40), TruncationSide):
        need = Need(tokens=tokens, cut_side=cut)
        assert kept(PrefixReader(tokenizer).read(text, need).encoding, need)[0] == kept(whole, need)[0]


@pytest.mark.parametrize("cut", TruncationSide)
@pytest.mark.parametrize("kind", KINDS)
def test_no_more_is_read_than_about_what_is_needed(kind: str, cut: TruncationSide) -> None:
    """Of a thousand words no more than a few, and the text is read once."""
    asked: list[int] = []

    class Counted(PrefixReader):
        def _encode(self, texts: list[str], offsets: bool = False) -> list[Encoding]:
            asked.extend(map(len, texts))
            return super()._encode(texts, offsets)

    read = Counted(tokenizer_of(kind, True)).read("other the words " * 1000, Need(tokens=9, cut_side=cut))
    assert not read.whole
    assert sum(asked) < 200


@pytest.mark.parametrize("cut", TruncationSide)
def test_of_a_text_without_spaces_no_more_is_read_than_about_what_is_needed(cut: TruncationSide) -> None:
    """BERT's tokenizers split between ideographs, unless told not to, or where an added token holds one."""
    text, need = "中文字漢" * 1000, Need(tokens=9, cut_side=cut)
    tokenizer = made("BERT", markers=False)
    found = PrefixReader(tokenizer).read(text, need)
    assert not found.whole
    assert len(found.encoding) < 200
    assert kept(found.encoding, need)[0] == kept(tokenizer.encode(text), need)[0]
    held, other = made("BERT", markers=False), made("BERT", markers=False)
    held.add_tokens([AddedToken("字", single_word=True)])
    other.normalizer = normalizers.BertNormalizer(handle_chinese_chars=False)
    for each in (held, other):
        assert PrefixReader(each).read(text, need).whole


HARMLESS = {"normalizer": normalizers.NFC(), "pre_tokenizer": pre_tokenizers.WhitespaceSplit()}


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": normalizers.Replace(" ", "")},
        {"normalizer": normalizers.Replace("a b", "c")},
        {"normalizer": normalizers.ByteLevel()},
        {"pre_tokenizer": None},
        {"pre_tokenizer": pre_tokenizers.Split(" ", "merged_with_next")},
        {"pre_tokenizer": pre_tokenizers.Punctuation()},
        {"pre_tokenizer": pre_tokenizers.FixedLength(5)},
        {"model": models.BPE({"a": 0}, [], dropout=0.5)},
        {"added": AddedToken("New York")},
        {"added": AddedToken("mask", rstrip=True)},
    ],
    ids=str,
)
def test_what_is_not_known_is_read_whole(change: dict[str, object]) -> None:
    """Other stages, merges by chance, added tokens that reach over a space."""
    tokenizer = Tokenizer(change.get("model", models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]")))
    for name, stage in (HARMLESS | change).items():
        if name in HARMLESS:
            setattr(tokenizer, name, stage)
    tokenizer.add_tokens([change["added"]] if "added" in change else [])
    text = "a b " * 100
    assert SplitPoints(tokenizer).end_of_prefix(text, 40) is None
    assert SplitPoints(tokenizer).start_of_suffix(text, 40) is None
    assert PrefixReader(tokenizer).read(text, Need(tokens=2, cut_side=TruncationSide.RIGHT)).whole


def test_merges_that_go_on_after_a_space_keep_a_text_whole() -> None:
    """A piece such as `of▁the` may join any two words."""
    for pieces, parted in (
        (["▁", "a", "▁a"], True),
        (["▁", "a", "a▁"], False),
        (["▁", "a", "a▁a"], False),
        (["a"], False),
    ):
        tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
        assert (SplitPoints(tokenizer).end_of_prefix("a a a a", 4) is not None) is parted


def test_texts_come_in_slices_and_in_order() -> None:
    """Of about so many letters; a longer text is a slice of its own."""
    texts = ["the " * length for length in (1, 5000, 10, 20, 3000, 9)]
    batches = list(PrefixReader(tokenizer_of("BERT", False)).read_batches(texts))
    assert [len(read.encoding) for reads in batches for read in reads] == [1, 5000, 10, 20, 3000, 9]
    assert [len(reads) for reads in batches] == [1, 1, 4]
    assert SLICE_LETTERS < 20_000
