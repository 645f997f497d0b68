"""Split points: places where a text may be cut so that its parts have the tokens that the whole has.

Such a place is before a single space between two letters or digits, if all stages of the tokenizer stop there:

- a normalizer changes nothing across it: a space joins neither a combining mark nor a grapheme before it;
- the pre-tokenizer splits there, so that the model never sees both sides at once; or it never splits, and the
  vocabulary has no piece that goes on after a space, so that no merge can cross it;
- no added token holds such a space, nor takes the space after it.

BERT's normalizer puts every ideograph between spaces. With it, texts may also be split between two ideographs, as long
as no added token holds one.

With a tokenizer that has any stage that is not listed here, texts are not split at all. Knows no limits and requests.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

SEARCHED = 4096
"""Letters in which a split point is searched; texts with longer words are not split."""
SPACE, MARK = " ", "▁"

_PREPEND = re.compile(
    "[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd\U000111c2\U000111c3"
    "\U0001193f\U00011941\U00011a3a\U00011a84-\U00011a89\U00011d46\U00011f02]"
)
"""Letters that form one grapheme with any letter that follows (Grapheme_Cluster_Break=Prepend)."""

_IDEOGRAPH = "[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002a6df]"
"""The ideographs that BERT's normalizer puts between spaces and no other normalizer changes."""
_TWO_IDEOGRAPHS = re.compile(f"{_IDEOGRAPH}(?={_IDEOGRAPH})")
_LAST_TWO_IDEOGRAPHS = re.compile(f"(?s:.*){_TWO_IDEOGRAPHS.pattern}")

_LOCAL = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "StripAccents"}
"""Normalizers that look at one grapheme at a time."""
_EDGES = {"Prepend", "Strip"}
"""Normalizers that also change the ends of a text: the first word of a second part may have other tokens."""
_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
"""Pre-tokenizers that split at every space."""
_INSIDE_WORDS = {"Digits", "Punctuation"}
"""Pre-tokenizers that only split within words."""
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    _CONTRACTIONS + _WORDS + r"|\p{N}" + _REST,  # Qwen 2 and 3
    _CONTRACTIONS + _WORDS + r"|\p{N}{1,3}" + _REST,  # Llama 3, GPT-4
}
"""Patterns of the pre-tokenizer Split that begin a new match before a single space between letters or digits."""


class SplitPoints:
    """Finds the split points of texts for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        normalizers = list(_stages(tokenizer.normalizer))
        self._at_spaces = _stops_at_spaces(tokenizer, normalizers) and not _holds_spaces(tokenizer)
        self._at_ideographs = self._at_spaces and _spaces_ideographs(normalizers) and not _holds_ideographs(tokenizer)

    def end_of_prefix(self, text: str, letters: int) -> int | None:
        """The split point that ends a first part of about so many letters; None where there is none."""
        place = self._last(text, max(0, letters - SEARCHED), letters + 1)
        return place if place >= 0 else None

    def start_of_suffix(self, text: str, letters: int) -> tuple[int, int] | None:
        """The split point that begins a last part of about so many letters, and the next one; None: there is none.

        The tokens between the two are not always those of the whole text; the tokens after them are.
        """
        start = max(0, len(text) - letters)
        begin = self._next(text, start, start + SEARCHED)
        end = -1 if begin < 0 else self._next(text, begin + 1, begin + SEARCHED)
        return None if end < 0 else (begin, end)

    def _next(self, text: str, start: int, stop: int) -> int:
        """The first split point from `start` on, or -1."""
        place = text.find(SPACE, start, stop) if self._at_spaces else -1
        while place >= 0 and not _is_split_point(text[place - 1 : place], text[place + 1 : place + 2]):
            place = text.find(SPACE, place + 1, stop)
        match = _TWO_IDEOGRAPHS.search(text, max(0, start - 1), stop) if self._at_ideographs else None
        return place if match is None or 0 <= place < match.end() else match.end()

    def _last(self, text: str, start: int, stop: int) -> int:
        """The last split point before `stop`, or -1."""
        place = text.rfind(SPACE, start, stop) if self._at_spaces else -1
        while place >= 0 and not _is_split_point(text[place - 1 : place], text[place + 1 : place + 2]):
            place = text.rfind(SPACE, start, place)
        match = _LAST_TWO_IDEOGRAPHS.match(text, start, stop) if self._at_ideographs else None
        return place if match is None else max(place, match.end())


def _is_split_point(before: str, after: str) -> bool:
    """Whether all normalizers keep a space between these letters. At the end of a text a letter is empty."""
    if before.isascii() and after.isascii():
        return before.isalnum() and after.isalnum()
    # Some letters are written with spaces of their own where they are normalised, such as U+FE70.
    plain = all(unicodedata.normalize("NFKC", side).isalnum() and side.isalnum() for side in (before, after))
    return plain and not _PREPEND.match(before)


def _stages(component: Any) -> Iterator[Mapping[str, Any]]:
    """The descriptions of all stages of a normalizer or pre-tokenizer, in order."""
    if component is not None:
        yield from _flattened(json.loads(component.__getstate__()))


def _flattened(stage: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if stage["type"] == "Sequence":
        for inner in stage.get("normalizers", stage.get("pretokenizers", ())):
            yield from _flattened(inner)
    else:
        yield stage


def _stops_at_spaces(tokenizer: Tokenizer, normalizers: list[Mapping[str, Any]]) -> bool:
    """Whether no stage of the tokenizer, nor its model, sees both sides of a space at once."""
    model, stages = tokenizer.model, list(_stages(tokenizer.pre_tokenizer))
    marks = any(_marks_spaces(stage) for stage in normalizers)
    if not all(
        stage["type"] in _LOCAL | _EDGES or _marks_spaces(stage) or _spares_spaces(stage) for stage in normalizers
    ):
        return False
    if isinstance(model, models.BPE):
        if model.dropout:
            return False
    elif not isinstance(model, models.WordPiece | models.WordLevel | models.Unigram):
        return False
    if any(stage["type"] == "BertNormalizer" for stage in normalizers):  # it adds spaces around ideographs
        return (
            {stage["type"] for stage in normalizers} <= _LOCAL
            and bool(stages)
            and stages[0]["type"] in _SPLITTERS
            and _splits(stages)
        )
    whole = {"type": "Metaspace", "replacement": MARK, "split": False}
    gemma = {"type": "Split", "pattern": {"String": SPACE}}
    if not stages or all(_has(stage, whole) or (marks and _has(stage, gemma)) for stage in stages):
        return (bool(stages) or marks) and _merges_within_words(model, tokenizer.get_vocab(with_added_tokens=False))
    return not marks and _splits(stages)


def _has(stage: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether the description of a stage holds these values."""
    return all(stage.get(name) == value for name, value in values.items())


def _marks_spaces(normalizer: Mapping[str, Any]) -> bool:
    """Whether a normalizer replaces each space by a mark."""
    return _has(normalizer, {"type": "Replace", "pattern": {"String": SPACE}, "content": MARK})


def _spares_spaces(normalizer: Mapping[str, Any]) -> bool:
    """Whether a normalizer is a Replace that never matches at a single space between letters."""
    if normalizer["type"] != "Replace":
        return False
    pattern = normalizer["pattern"]
    if "String" in pattern:
        return bool(pattern["String"]) and not any(letter.isalnum() or letter.isspace() for letter in pattern["String"])
    return pattern.get("Regex") == " {2,}" and normalizer["content"] in (SPACE, MARK)


def _splits(stages: list[Mapping[str, Any]]) -> bool:
    """Whether a space begins a new word, and no stage before or after that undoes it."""
    first = next((stage for stage in stages if stage["type"] not in _INSIDE_WORDS), None)
    listed = _INSIDE_WORDS | _SPLITTERS | {"ByteLevel", "Metaspace"}
    if first is None or not all(stage["type"] in listed or _splits_by_pattern(stage) for stage in stages):
        return False
    return (
        first["type"] in _SPLITTERS
        or _splits_by_pattern(first)
        or _has(first, {"type": "ByteLevel", "use_regex": True})
        or (_has(first, {"type": "Metaspace", "replacement": MARK}) and first.get("split") is not False)
    )


def _splits_by_pattern(stage: Mapping[str, Any]) -> bool:
    """Whether a stage is a Split by one of `_PATTERNS`."""
    wanted = {"type": "Split", "behavior": "Isolated", "invert": False}
    return _has(stage, wanted) and stage["pattern"].get("Regex") in _PATTERNS


def _merges_within_words(model: Any, vocabulary: Iterable[str]) -> bool:
    """Whether the merges of a whole text stay within its words: no piece goes on after a space."""
    plain = isinstance(model, models.BPE) and not (
        model.ignore_merges or model.end_of_word_suffix or model.continuing_subword_prefix
    )
    return plain and MARK in vocabulary and not any(MARK in piece.lstrip(MARK) for piece in vocabulary)


def _spaces_ideographs(normalizers: list[Mapping[str, Any]]) -> bool:
    """Whether each ideograph becomes a word by itself."""
    return any(stage["type"] == "BertNormalizer" and stage.get("handle_chinese_chars") is True for stage in normalizers)


def _holds_ideographs(tokenizer: Tokenizer) -> bool:
    """Whether an added token holds an ideograph."""
    return any(re.search(_IDEOGRAPH, form) for _, forms in _added_tokens(tokenizer) for form in forms)


def _holds_spaces(tokenizer: Tokenizer) -> bool:
    """Whether an added token holds a space after a letter, or takes the space that follows it."""
    for token, forms in _added_tokens(tokenizer):
        for form in forms:
            if any(first.isalnum() and second in (SPACE, MARK) for first, second in pairwise(form)):
                return True
            if token.rstrip and form[-1:].isalnum():
                return True
    return False


def _added_tokens(tokenizer: Tokenizer) -> Iterator[tuple[AddedToken, set[str]]]:
    """All added tokens, each with its forms: as it is written, and as it is normalised."""
    normalizer = tokenizer.normalizer
    for token in tokenizer.get_added_tokens_decoder().values():
        yield token, {token.content, normalizer.normalize_str(token.content) if normalizer else token.content}
