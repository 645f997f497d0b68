"""Documents to sequences and token ranges: which tokens a span has, behind a prompt and in windows."""

import unicodedata
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fakes import FakeWorker, card
from hypothesis import given
from hypothesis import strategies as st
from kinds import byte_level
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from frontend_service.domain.requests import Truncation
from frontend_service.tokenizing.spans import CHUNK_TOKENS, Document, windows
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from shared.errors import InvalidInput
from shared.vectors import InputType
from support.chunks import run_to_end


def of(tokenizer: ModelTokenizer, document: Document, overlap: int | None = None) -> Any:
    cut = Truncation()
    return run_to_end(tokenizer.documents.tokenize([document], "", cut, InputType.UNSPECIFIED, overlap))


def test_windows_are_made_in_slices() -> None:
    """So a request of many can be cancelled, and others take turns with it."""
    tokenizer = FakeWorker(card(max_tokens=1002)).served.tokenizer
    bounds = [(2 * number, 2 * number + 1) for number in range(2000)]
    document = Document(text="a " * 2000, spans=bounds, entry="texts[0]", span_entry="spans[0]")
    slices = tokenizer.documents.tokenize([document], "", Truncation(), InputType.UNSPECIFIED, 999)
    total, *ends = slices
    assert total == ends[-1] == 1001 * 1002
    assert max(after - before for before, after in pairwise([0, *ends])) <= CHUNK_TOKENS + 1002


NORMALIZERS = {
    "NFKC": (normalizers.NFKC(), lambda text: unicodedata.normalize("NFKC", text)),
    "accents": (
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        lambda text: "".join(
            letter for letter in unicodedata.normalize("NFD", text) if not unicodedata.combining(letter)
        ),
    ),
    "lowercase": (normalizers.Lowercase(), str.lower),
}
WRITTEN = ["a", "ﬁnd", "İzmir", "㎏", "café", "ﬃ", "é", "b"]


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("space", [0, 1])
def test_characters_are_those_of_the_text_before_it_is_normalised(name: str, space: int) -> None:
    """Ligatures become several letters, accents none, a dotted capital I two: words behind them stay where they were.
    The oracle is Python's own normalisation: the token of a word is the word as Python normalises it."""
    normalizer, normalise = NORMALIZERS[name]
    words = [normalise(word) for word in WRITTEN]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(["[UNK]", *words]))}
    library = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizer, pre_tokenizers.WhitespaceSplit()
    tokenizer = ModelTokenizer(library.to_str().encode(), card(max_tokens=99))
    ends = np.cumsum([len(word) + 1 for word in WRITTEN]).tolist()
    bounds = [(end - 1 - len(word), end - 1 + space) for word, end in zip(WRITTEN, ends, strict=True)]
    text = "".join(f"{word} " for word in WRITTEN)
    batch = of(tokenizer, Document(text=text, spans=bounds, entry="texts[0]", span_entry="spans[0]"))
    assert (batch.ranges.starts, batch.ranges.stops) == (tuple(range(len(words))), tuple(range(1, len(words) + 1)))
    assert np.frombuffer(batch.tokens.ids, dtype="<i4").tolist() == [vocabulary[word] for word in words]


PROMPT, TEXT = "the: ", "the other the other"


@pytest.mark.parametrize("limit", [20, 5])
@pytest.mark.parametrize("chunks", [False, True])
def test_spans_are_pooled_of_all_their_tokens_behind_a_prompt_that_is_left_out(chunks: bool, limit: int) -> None:
    """Though the prompt's last space belongs to the word behind it, and is a token only where the prompt stands alone.
    The oracle is the library's own spelling of the tokens that are pooled. In windows too."""
    tokenizer = ModelTokenizer(
        byte_level(prefix=False).to_str().encode(),
        card(max_tokens=limit, vocabulary_size=100_000, include_prompt=False, pooling="mean"),
    )
    library = tokenizer.tokenizer
    alone, before = (library.encode(text).tokens for text in (PROMPT, PROMPT + TEXT))
    assert before[: len(alone)] != alone, "the prompt's last token should be another before the text"
    bounds = [(0, 9), (9, 13), (13, 19)]
    document = Document(text=TEXT, spans=bounds, entry="texts", span_entry="spans[{}]", chunks=chunks)
    batch = run_to_end(tokenizer.documents.tokenize([document], PROMPT, Truncation(), InputType.UNSPECIFIED, 0))
    assert (len(batch.tokens) > 1) == (limit == 5)
    ids = np.split(np.frombuffer(batch.tokens.ids, dtype="<i4"), batch.tokens.offsets[1:-1])
    pooled = [
        [library.id_to_token(token) for token in sequence[max(start, skip) : stop]]
        for sequence, skip, ranges in zip(ids, batch.prompt_lengths, batch.ranges.of_each(), strict=True)
        for start, stop in ranges
    ]
    # The first chunk has the prompt, of which sentence-transformers leaves out as many tokens as it has by itself.
    first = before[len(alone) : 4] if chunks else before[2:4]
    assert pooled == [first, ["Ġthe"], ["Ġother"]]


@given(st.lists(st.text("ab éß\N{GRINNING FACE}\n.", min_size=1, max_size=5), min_size=1, max_size=6), st.booleans())
def test_every_token_belongs_to_one_chunk(chunks: list[str], prefix: bool) -> None:
    """By a byte-level tokenizer, whose tokens may be less than a letter and begin with a space; or a chunk has none."""
    tokenizer = ModelTokenizer(
        byte_level(prefix=prefix).to_str().encode(), card(max_tokens=500, vocabulary_size=100_000)
    )
    ends = np.cumsum([0, *map(len, chunks)]).tolist()
    document = Document(
        text="".join(chunks), spans=list(pairwise(ends)), entry="texts", span_entry="texts[{}]", chunks=True
    )
    offsets = tokenizer.tokenizer.encode(document.text).offsets
    owners = np.searchsorted(ends, [max(start, end - 1) for start, end in offsets], side="right") - 1
    counts = np.bincount(owners, minlength=len(chunks))
    if not counts.all():
        with pytest.raises(InvalidInput, match="no token"):
            of(tokenizer, document)
        return
    batch = of(tokenizer, document)
    assert batch.ranges.starts == (0, *batch.ranges.stops[:-1])
    assert batch.ranges.stops[-1] == batch.tokens.total
    assert list(batch.token_counts) == counts.tolist()


@given(
    st.lists(st.tuples(st.integers(3, 60), st.integers(1, 9)), min_size=1, max_size=20),
    st.integers(9, 14),
    st.integers(0, 8),
)
def test_every_span_is_in_one_window_with_what_is_before_it(
    sizes: list[tuple[int, int]], room: int, overlap: int
) -> None:
    """As a whole; and with the overlap before it where that fits."""
    bounds = [(start, start + size) for start, size in sizes]
    end = max(stop for _, stop in bounds)
    spans: list[int] = []
    for window in windows(bounds, (3, end), room, overlap):
        assert 3 <= window.start < window.stop <= end
        assert window.stop - window.start <= room
        spans += window.spans
        for number in window.spans:
            start, stop = bounds[number]
            assert window.start <= start < stop <= window.stop
        first = bounds[window.spans[0]]
        before = first[0] - window.start
        assert before >= min(overlap, first[0] - 3, room - (first[1] - first[0]))
    assert sorted(spans) == list(range(len(bounds)))
