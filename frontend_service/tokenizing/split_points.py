"""Where a text may be parted so that its halves have the tokens that the whole has, one after the other.

That is before a single space between two letters or digits, if all stages of the tokenizer are known to stop there:

- a normalizer changes nothing across it: a space joins neither a combining mark nor a grapheme before it;
- the pre-tokenizer splits there, so that the model never sees both sides at once; or it never splits, and the
  vocabulary has no piece that goes on after a space, so that no merge can cross it;
- no added token holds such a space, nor takes the space after it.

BERT's normalizer puts every ideograph between spaces. With it, texts may also be parted between two ideographs, as long
as no added token holds one.

A tokenizer of which anything else is seen is not parted at all. Knows nothing of limits and requests.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

SEARCHED = 4096
"""Letters in which a place is looked for; where words are longer, texts are not parted."""
SPACE, MARK = " ", "▁"

_PREPEND = re.compile(
    "[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd\U000111c2\U000111c3"
    "\U0001193f\U00011941\U00011a3a\U00011a84-\U00011a89\U00011d46\U00011f02]"
)
"""Letters that make one grapheme with whatever follows (Grapheme_Cluster_Break=Prepend)."""

_IDEOGRAPH = "[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002a6df]"
"""Of those that BERT's normalizer knows, the ones that nothing else changes."""
_TWO_IDEOGRAPHS = re.compile(f"{_IDEOGRAPH}(?={_IDEOGRAPH})")
_LAST_TWO_IDEOGRAPHS = re.compile(f"(?s:.*){_TWO_IDEOGRAPHS.pattern}")

_LOCAL = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "StripAccents"}
"""Normalizers that look no further than a grapheme."""
_EDGES = {"Prepend", "Strip"}
"""Those that also look at the ends of a text: there, the first word of a second half may differ."""
_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    _CONTRACTIONS + _WORDS + r"|\p{N}" + _REST,  # Qwen 2 and 3
    _CONTRACTIONS + _WORDS + r"|\p{N}{1,3}" + _REST,  # Llama 3, GPT-4
}
"""Of Split: before a single space between letters or digits each of them begins a new match."""


class Parting:
    """Of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        normalizers = list(_stages(tokenizer.normalizer))
        self._known = _stops_at_spaces(tokenizer, normalizers) and not _holds_spaces(tokenizer)
        self._ideographs = self._known and _spaces_ideographs(normalizers) and not _holds_ideographs(tokenizer)

    def before(self, text: str, letters: int) -> int | None:
        """How long the first half is, about `letters`; None: the text cannot be parted there."""
        place = self._last(text, max(0, letters - SEARCHED), letters + 1)
        return place if place >= 0 else None

    def after(self, text: str, letters: int) -> tuple[int, int] | None:
        """Where the second half begins, about `letters` from the end, and where its first word ends.

        The tokens of that word are not always those of the whole text; those behind it are.
        """
        start = max(0, len(text) - letters)
        begin = self._next(text, start, start + SEARCHED)
        end = -1 if begin < 0 else self._next(text, begin + 1, begin + SEARCHED)
        return None if end < 0 else (begin, end)

    def _next(self, text: str, start: int, stop: int) -> int:
        """The first place from `start` on, or -1."""
        place = text.find(SPACE, start, stop) if self._known else -1
        while place >= 0 and not _parts(text[place - 1 : place], text[place + 1 : place + 2]):
            place = text.find(SPACE, place + 1, stop)
        found = _TWO_IDEOGRAPHS.search(text, max(0, start - 1), stop) if self._ideographs else None
        return place if found is None or 0 <= place < found.end() else found.end()

    def _last(self, text: str, start: int, stop: int) -> int:
        """The last place before `stop`, or -1."""
        place = text.rfind(SPACE, start, stop) if self._known else -1
        while place >= 0 and not _parts(text[place - 1 : place], text[place + 1 : place + 2]):
            place = text.rfind(SPACE, start, place)
        found = _LAST_TWO_IDEOGRAPHS.match(text, start, stop) if self._ideographs else None
        return place if found is None else max(place, found.end())


def _parts(before: str, after: str) -> bool:
    """Whether a space between these two letters is one for every normalizer; no letters at a text's ends."""
    if before.isascii() and after.isascii():
        return before.isalnum() and after.isalnum()
    # Some letters are written with spaces of their own where they are normalised, such as U+FE70.
    plain = all(unicodedata.normalize("NFKC", each).isalnum() and each.isalnum() for each in (before, after))
    return plain and not _PREPEND.match(before)


def _stages(component: Any) -> Iterator[Mapping[str, Any]]:
    """The description of a normalizer or pre-tokenizer, sequences written out."""
    if component is not None:
        yield from _flat(json.loads(component.__getstate__()))


def _flat(stage: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if stage["type"] == "Sequence":
        for each in stage.get("normalizers", stage.get("pretokenizers", ())):
            yield from _flat(each)
    else:
        yield stage


def _stops_at_spaces(tokenizer: Tokenizer, normalizers: list[Mapping[str, Any]]) -> bool:
    """Whether nothing is read across a space."""
    model, stages = tokenizer.model, list(_stages(tokenizer.pre_tokenizer))
    marks = any(_marks_spaces(each) for each in normalizers)
    if not all(each["type"] in _LOCAL | _EDGES or _marks_spaces(each) or _replaces(each) for each in normalizers):
        return False
    if isinstance(model, models.BPE):
        if model.dropout:
            return False
    elif not isinstance(model, models.WordPiece | models.WordLevel | models.Unigram):
        return False
    if any(each["type"] == "BertNormalizer" for each in normalizers):  # it adds spaces of its own around ideographs
        return (
            {each["type"] for each in normalizers} <= _LOCAL
            and bool(stages)
            and stages[0]["type"] in _SPLITTERS
            and _splits(stages)
        )
    whole = {"type": "Metaspace", "replacement": MARK, "split": False}
    gemma = {"type": "Split", "pattern": {"String": SPACE}}
    if not stages or all(_has(each, whole) or (marks and _has(each, gemma)) for each in stages):
        return (bool(stages) or marks) and _merges_within_words(model, tokenizer.get_vocab(with_added_tokens=False))
    return not marks and _splits(stages)


def _has(stage: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return all(stage.get(name) == value for name, value in values.items())


def _marks_spaces(normalizer: Mapping[str, Any]) -> bool:
    return _has(normalizer, {"type": "Replace", "pattern": {"String": SPACE}, "content": MARK})


def _replaces(normalizer: Mapping[str, Any]) -> bool:
    """Whether what a Replace looks for is never at a single space between letters."""
    if normalizer["type"] != "Replace":
        return False
    pattern = normalizer["pattern"]
    if "String" in pattern:
        return bool(pattern["String"]) and not any(each.isalnum() or each.isspace() for each in pattern["String"])
    return pattern.get("Regex") == " {2,}" and normalizer["content"] in (SPACE, MARK)


def _splits(stages: list[Mapping[str, Any]]) -> bool:
    """Whether a space begins a new word, and no stage before or behind it undoes that."""
    inside = {"Digits", "Punctuation"}
    begins = next((at for at, each in enumerate(stages) if each["type"] not in inside), None)
    known = inside | _SPLITTERS | {"ByteLevel", "Metaspace"}
    if begins is None or not all(each["type"] in known or _pattern(each) for each in stages):
        return False
    first = stages[begins]
    return (
        first["type"] in _SPLITTERS
        or _pattern(first)
        or _has(first, {"type": "ByteLevel", "use_regex": True})
        or (_has(first, {"type": "Metaspace", "replacement": MARK}) and first.get("split") is not False)
    )


def _pattern(stage: Mapping[str, Any]) -> bool:
    wanted = {"type": "Split", "behavior": "Isolated", "invert": False}
    return _has(stage, wanted) and stage["pattern"].get("Regex") in _PATTERNS


def _merges_within_words(model: Any, vocabulary: Iterable[str]) -> bool:
    """Whether merges over a whole text stay within its words: no piece goes on after a space."""
    plain = isinstance(model, models.BPE) and not (
        model.ignore_merges or model.end_of_word_suffix or model.continuing_subword_prefix
    )
    return plain and MARK in vocabulary and not any(MARK in piece.lstrip(MARK) for piece in vocabulary)


def _spaces_ideographs(normalizers: list[Mapping[str, Any]]) -> bool:
    """Whether each ideograph becomes a word of its own."""
    return any(each["type"] == "BertNormalizer" and each.get("handle_chinese_chars") is True for each in normalizers)


def _holds_ideographs(tokenizer: Tokenizer) -> bool:
    """Whether some added token does."""
    return any(re.search(_IDEOGRAPH, form) for _, forms in _added(tokenizer) for form in forms)


def _holds_spaces(tokenizer: Tokenizer) -> bool:
    """Whether some added token reaches over a space between letters."""
    for token, forms in _added(tokenizer):
        for form in forms:
            if any(first.isalnum() and second in (SPACE, MARK) for first, second in pairwise(form)):
                return True
            if token.rstrip and form[-1:].isalnum():
                return True
    return False


def _added(tokenizer: Tokenizer) -> Iterator[tuple[AddedToken, set[str]]]:
    """Each added token, as it is written and as it is normalised."""
    normalizer = tokenizer.normalizer
    for token in tokenizer.get_added_tokens_decoder().values():
        yield token, {token.content, normalizer.normalize_str(token.content) if normalizer else token.content}
