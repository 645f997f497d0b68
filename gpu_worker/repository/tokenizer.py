"""Tokenizers, exported once at load for the frontend, and the rule by which they give tokens their types.

No other module of the worker knows tokenizers.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_worker.ragged.texts import Counts, Frame, Ids, TokenTypes
from gpu_worker.repository.files import check_fetched, first_line, one_of, read_object
from shared.errors import ModelRefused
from shared.vectors import TruncationSide

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
TEXTS = ("a", "", "what is it?", "It has several words, and 333 more: of them some are Capitals.")
PAIRS = (("a", "b"), ("what is it?", "It has several words, and 333 more."), ("one and two, three", "a"))
"""Inputs that a tokenizer may give, and the texts and pairs by which it is tried."""
ROLES = ("cls", "sep", "pad", "mask", "unk", "bos", "eos")
FILES = ("tokenizer.json", "vocab*", "*.vocab", "merges.txt", "*.codes", "*.model", "*.tiktoken", "tekken.json")
"""Names of files that transformers' tokenizer classes read."""
WITHOUT_DROPOUT = "its tokenizer's BPE dropout, by which one text gets other tokens each time, is off"
"""Notice for a tokenizer.json that was written while its model was trained."""
SPECIAL = 16
"""Most special tokens that a class and its file are compared by."""
REMEDY = "fetch the tokenizer's files of this model again"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenInputs:
    """Inputs [L] by name that transformers' tokenizer makes of a text or a pair.

    The second text of a pair begins at `second_segment`, the first token of type 1, as in the frontend.
    """

    inputs: Mapping[str, Counts]
    second_segment: int = 0

    @property
    def ids(self) -> Ids:
        """Token ids [L]."""
        return self.inputs[IDS].astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInputs:
    """Results of trying a tokenizer on a few texts and pairs: `texts`, `pairs`, and the rule of token types.

    `types` is None where the tokenizer gives none. `types_hold_for_pairs`: the rule holds for pairs too, once the start
    of the second text is known.
    """

    types: TokenTypes | None
    texts: tuple[WrittenInputs, ...] = ()
    pairs: tuple[WrittenInputs, ...] = ()
    types_hold_for_pairs: bool = True


PLAIN = TokenizerInputs(types=TokenTypes())
"""Inputs of a tokenizer whose types mark the second text of a pair and nothing else."""

NO_TYPES = TokenizerInputs(types=None)
"""Inputs of a tokenizer that gives token ids alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    """A tokenizer.json (format of the `tokenizers` library) without truncation and padding, and its special ids.

    `inputs`: the inputs that transformers' tokenizer class gives beside ids. `truncation_side`: the end that is cut off
    where a request names none. `special_ids`: all that transformers counts as special (`all_special_ids`), those of
    `special_tokens` and more. `notice`: what users should know of it, usually empty.
    """

    content: bytes
    special_tokens: dict[str, int]
    special_ids: tuple[int, ...] = ()
    notice: str = ""
    inputs: TokenizerInputs = PLAIN
    truncation_side: TruncationSide = TruncationSide.RIGHT

    def ids_of(self, words: Iterable[str]) -> dict[str, int]:
        """Finds the ids of those tokens, as the vocabulary writes them, that it has."""
        from tokenizers import Tokenizer

        find = Tokenizer.from_buffer(self.content).token_to_id
        ids = {word: find(word) for word in words}
        return {word: identity for word, identity in ids.items() if identity is not None}

    def marks(self, text: str) -> list[tuple[int, ...]]:
        """Encodes a mark behind another text and at the beginning of a text; the ids may differ."""
        from tokenizers import Tokenizer

        reader = Tokenizer.from_buffer(self.content)

        def ids(content: str) -> Sequence[int]:
            encoded: Sequence[int] = reader.encode(content, add_special_tokens=False).ids
            return encoded

        before = ids("a\n")
        within = ids("a\n" + text)
        return [tuple(within[len(before) :]), tuple(ids(text))]


class TokenizerReader:
    """A reader of texts, which opens a TokenizerFile as a frontend does."""

    def __init__(self, file: TokenizerFile) -> None:
        """Opens the file. Raises ModelRefused where no frontend could use it."""
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_buffer(file.content)
            self.framed("a")
        except BaseException as error:
            # The library's panics are no Exception, and their class cannot be imported.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ModelRefused(f"its tokenizer can read no text: {first_line(error)}: {REMEDY}") from None

    def ids(self, text: str) -> list[int]:
        """Encodes a text without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def framed(self, text: str) -> list[int]:
        """Encodes a text with the special tokens that every text gets."""
        return list(self._tokenizer.encode(text).ids)

    def check_equals(self, tokenizer: Any, lowercase: bool, *, bare: bool = False) -> None:
        """Raises ModelRefused where transformers' tokenizer, which wrote the file, reads a text otherwise.

        What a class does in Python, or sets only when it is called, is not in the file. `lowercase` is as in `export`.
        `bare`: without special tokens around a text.
        """
        special = "".join(f"a {token} b{token}" for token in tokenizer.all_special_tokens[:SPECIAL])
        for text in [text.lower() for text in TEXTS] if lowercase else [*TEXTS, special]:
            name = f"its tokenizer ({type(tokenizer).__name__})"
            try:
                expected = list(tokenizer(text, add_special_tokens=not bare)[IDS])
            except Exception as error:  # a class may have a meaning of its own for a special token
                raise ModelRefused(f"{name} fails on {text[:40]!r}: {first_line(error)}") from error
            if self.framed(text) != expected:
                why = "reads texts otherwise than the tokenizer.json that it writes, which frontends use"
                raise ModelRefused(f"{name} {why}: {text[:40]!r}")

    def added(self, pair: bool) -> int:
        """Counts the special tokens around a text, or around and between two."""
        return int(self._tokenizer.num_special_tokens_to_add(is_pair=pair))

    def vocabulary(self) -> dict[str, int]:
        """Reads the ids by tokens, added ones included."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))


def read(folder: Path, trust_remote_code: bool, truncation_side: str | None = None) -> Any:
    """Loads transformers' tokenizer from `folder`; it converts one without tokenizer.json. Raises ModelRefused.

    `truncation_side` overrides tokenizer_config.json.
    """
    from transformers import AutoTokenizer

    files = [file for name in FILES for file in folder.glob(name) if file.is_file()]
    for file in files:
        check_fetched(file)
    if not trust_remote_code and not files:
        raise ModelRefused(
            f"{folder} holds no tokenizer that frontends can use: there is no tokenizer.json, and no vocabulary such "
            f"as vocab.txt: {REMEDY}"
        )
    overrides = {"truncation_side": truncation_side} if truncation_side else {}
    try:
        return AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code, **overrides
        )
    except Exception as error:  # transformers raises many kinds; all mean that there is no tokenizer
        raise ModelRefused(f"{folder}: the tokenizer cannot be loaded: {first_line(error)}: {REMEDY}") from error


def read_bare(folder: Path) -> TokenizerFile:
    """Reads the tokenizer.json of a folder without settings beside it, for texts without special tokens.

    So sentence-transformers' StaticEmbedding reads it. Raises ModelRefused.
    """
    file = folder / "tokenizer.json"
    check_fetched(file)
    description = read_object(file)
    side = str((description.get("truncation") or {}).get("direction", "Right")).upper()
    one_of(side, TruncationSide.__members__, f"{file}: truncation: direction")
    exported = finish(description | {"post_processor": None}, {})
    return replace(exported, inputs=NO_TYPES, truncation_side=TruncationSide[side])


def keep_whole(tokenizer: Any, markers: Iterable[str], lowercase: bool) -> None:
    """Makes transformers' tokenizer read a marker as the one token it stands for, as training inserted it.

    As in sentence-transformers, a marker (or its first word) becomes a special token if the vocabulary has it and the
    tokenizer would split it. A marker that the vocabulary lacks stays ordinary text. `lowercase` is as in `export`.
    """
    from transformers import AddedToken

    vocabulary = set(tokenizer.get_vocab()) | set(tokenizer.added_tokens_encoder)
    missing = []
    for marker in markers:
        candidates = (marker, *marker.split(None, 1)[:1]) if marker.strip() else ()
        token = next((candidate for candidate in candidates if candidate in vocabulary), None)
        if token is not None and (lowercase or tokenizer.tokenize(token) != [token]):
            missing.append(AddedToken(token, normalized=False, special=True))
    if missing:
        tokenizer.add_special_tokens({"additional_special_tokens": missing})


def export(tokenizer: Any, lowercase: bool, *, bare: bool = False) -> TokenizerFile:
    """Exports transformers' tokenizer for the frontend. Raises ModelRefused.

    `lowercase`: sentence-transformers' own do_lower_case, which lowers a text before the tokenizer sees it. `bare`: for
    texts without special tokens around them.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelRefused(f"{type(tokenizer).__name__} cannot be written as a tokenizer.json, which frontends need")
    if tokenizer.split_special_tokens:
        raise ModelRefused(
            "tokenizer_config.json: split_special_tokens is true, which is not supported: special tokens in texts are "
            "read as such"
        )
    ids = {role: getattr(tokenizer, f"{role}_token_id", None) for role in ROLES}
    special = {role: identity for role, identity in ids.items() if identity is not None}
    exported = finish(json.loads(backend.to_str()) | ({"post_processor": None} if bare else {}), special, lowercase)
    if exported.notice:
        backend.model.dropout = None
    return replace(
        exported,
        special_ids=tuple(identity for identity in tokenizer.all_special_ids if identity is not None),
        inputs=NO_TYPES if bare else inputs_of(tokenizer),
        truncation_side=TruncationSide[tokenizer.truncation_side.upper()],
    )


def finish(description: dict[str, Any], special: dict[str, int], lowercase: bool = False) -> TokenizerFile:
    """Switches off truncation and padding, which the frontend does itself, and dropout, and serialises a tokenizer."""
    drops = bool(description.get("model", {}).get("dropout"))
    description = description | {"truncation": None, "padding": None}
    if drops:
        description["model"] = description["model"] | {"dropout": None}
    if lowercase:
        steps = [{"type": "Lowercase"}]
        if description.get("normalizer"):
            steps.append(description["normalizer"])
        description["normalizer"] = {"type": "Sequence", "normalizers": steps}
    content = json.dumps(description).encode()
    return TokenizerFile(content=content, special_tokens=special, notice=WITHOUT_DROPOUT if drops else "")


def inputs_of(tokenizer: Any) -> TokenizerInputs:
    """Tries transformers' tokenizer. Raises ModelRefused where types do not follow from special tokens' places."""
    try:
        texts = [tokenizer(text) for text in TEXTS]
        pairs = [tokenizer(*pair) for pair in PAIRS] if TYPES in texts[0] else []
        frames = _frame(texts), _frame(pairs)
    except Exception as error:  # any class may fail: some need boxes or nodes beside words
        raise ModelRefused(
            f"its tokenizer ({type(tokenizer).__name__}) reads no text by itself: {first_line(error)}"
        ) from error
    written, paired = (
        tuple(_written(encoding) for encoding in encodings if len(encoding[IDS])) for encodings in (texts, pairs)
    )
    if TYPES not in texts[0]:
        return TokenizerInputs(types=None, texts=written)
    types = TokenTypes(text=frames[0], pair=frames[1])
    if not all(_holds(types, text) for text in written):
        raise ModelRefused(f"{type(tokenizer).__name__} gives token types that do not follow from its special tokens")
    holds = all(_holds(types, pair) for pair in paired)
    return TokenizerInputs(types=types, texts=written, pairs=paired if holds else (), types_hold_for_pairs=holds)


def _written(encoding: Any) -> WrittenInputs:
    inputs = {name: np.array(values, dtype=np.int64) for name, values in encoding.items()}
    if TYPES not in inputs or 1 not in encoding.sequence_ids(0):
        return WrittenInputs(inputs=inputs)
    second = np.flatnonzero(inputs[TYPES] == 1)
    return WrittenInputs(inputs=inputs, second_segment=int(second[0]) if len(second) else 0)


def _frame(encodings: list[Any]) -> Frame:
    """Finds the special tokens around the longest of these texts; none where no text has a token of its body."""
    if not encodings or TYPES not in encodings[0]:
        return Frame()
    longest = max(encodings, key=lambda encoding: len(encoding[IDS]))
    special = np.array([side is None for side in longest.sequence_ids(0)])
    body = np.flatnonzero(~special)
    if not len(body):
        return Frame()
    tokens = list(zip(longest[IDS], longest[TYPES], strict=True))
    return Frame(before=tuple(tokens[: body[0]]), body=tokens[body[0]][1], after=tuple(tokens[body[-1] + 1 :]))


def _holds(types: TokenTypes, written: WrittenInputs) -> bool:
    """Whether the rule gives the types that the tokenizer gave."""
    ids: npt.NDArray[np.int32] = written.ids
    ends, second = np.array([0, len(ids)]), np.array([written.second_segment])
    by_rule = types.of(ids, ends, second)
    return bool((written.inputs[TYPES] == (0 if by_rule is None else by_rule)).all())
