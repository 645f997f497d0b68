"""Texts <-> token ids, exactly as the model was trained: prompts, special tokens, truncation. Runs in threads."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tokenizers import Encoding, Tokenizer

from frontend_service.requests import Cut, PromptChoice
from shared.card import ModelCard
from shared.errors import InputTooLong, InvalidInput, LimitExceeded, UnsupportedTask
from shared.ragged import RaggedTokens
from shared.vectors import InputType, TruncationSide

PROMPT_NAMES = {
    InputType.UNSPECIFIED: (),
    InputType.QUERY: ("query",),
    InputType.DOCUMENT: ("document", "passage", "corpus"),  # the order in which sentence-transformers looks
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """Texts as the model sees them. `prompt_length` are the tokens at each start that pooling leaves out."""

    encodings: tuple[Encoding, ...]
    truncated: tuple[bool, ...]
    prompt_length: int = 0

    @property
    def tokens(self) -> RaggedTokens:
        """The ids, packed."""
        return RaggedTokens.of([encoding.ids for encoding in self.encodings])


class Tokenization:
    """The tokenizer of one model. Its methods may run in several threads at once."""

    def __init__(self, tokenizer_json: bytes, card: ModelCard) -> None:
        self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._card = card
        self._added = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        self._prompt_length = lru_cache(maxsize=256)(self._measure_prompt)

    def prompt(self, choice: PromptChoice) -> str:
        """The text that goes before each text. Raises UnsupportedTask for a name that the model lacks."""
        prompts = self._card.prompts
        if choice.literal is not None:
            return choice.literal
        if choice.name is not None:
            if choice.name not in prompts:
                known = f"it has {', '.join(sorted(prompts))}" if prompts else "it has none"
                raise UnsupportedTask(f"the model has no prompt {choice.name!r}; {known}", field="prompt_name")
            return prompts[choice.name]
        names = (*PROMPT_NAMES[choice.input_type], self._card.default_prompt_name)
        return next((prompts[name] for name in names if name in prompts), "")

    def texts(self, texts: Sequence[str], prompt: str, cut: Cut, entry: str) -> Tokenized:
        """Tokenises; a text over the limit is cut or, without `truncate`, refused as INPUT_TOO_LONG.

        `entry` is what errors call one of the texts: `texts[{}]`, or `query`.
        """
        limit = self.limit(cut)
        encodings = self._tokenizer.encode_batch([prompt + text for text in texts] if prompt else list(texts))
        long = [index for index, encoding in enumerate(encodings) if len(encoding) > limit]
        if long and not cut.truncate:
            field = entry.format(long[0])
            raise InputTooLong(
                f"{field} has {len(encodings[long[0]])} tokens, the limit is {limit}; truncate would cut it",
                field=field,
            )
        for index in long:
            encodings[index] = self._shorten(prompt + texts[index], limit, cut.side)
        cut_ones = set(long)
        return Tokenized(
            encodings=tuple(encodings),
            truncated=tuple(index in cut_ones for index in range(len(texts))),
            prompt_length=0 if self._card.include_prompt or not prompt else self._prompt_length(prompt),
        )

    def limit(self, cut: Cut) -> int:
        """Tokens that a text may have."""
        asked, own = cut.max_tokens, self._card.max_tokens
        if asked is None:
            return own
        if asked > own:
            raise LimitExceeded(f"{cut.field} is {asked}, the model's limit is {own}", field=cut.field)
        least = max(1, self._added)
        if asked < least:
            raise InvalidInput(f"{cut.field} is {asked}, the special tokens alone need {least}", field=cut.field)
        return asked

    def given(self, tokenized: Sequence[Sequence[int]], cut: Cut) -> RaggedTokens:
        """Checks ids that the caller brought."""
        limit, size = self.limit(cut), self._card.vocabulary_size
        for index, ids in enumerate(tokenized):
            if len(ids) > limit:
                raise InputTooLong(
                    f"tokenized[{index}] has {len(ids)} tokens, the limit is {limit}", field=f"tokenized[{index}]"
                )
            if min(ids) < 0 or max(ids) >= size:
                wrong = next(identity for identity in ids if not 0 <= identity < size)
                raise InvalidInput(
                    f"tokenized[{index}] has the id {wrong}, the vocabulary ends at {size - 1}",
                    field=f"tokenized[{index}]",
                )
        return RaggedTokens.of(tokenized)

    def detokenize(self, tokenized: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        """Ids back to texts."""
        return self._tokenizer.decode_batch([list(ids) for ids in tokenized], skip_special_tokens=skip_special_tokens)

    def _shorten(self, text: str, limit: int, side: TruncationSide) -> Encoding:
        """Cuts the content so that it fits together with its special tokens."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        encoding.truncate(limit - self._added, direction="left" if side is TruncationSide.LEFT else "right")
        return self._tokenizer.post_process(encoding)

    def _measure_prompt(self, prompt: str) -> int:
        """Tokens of a prompt alone without the closing special token, as sentence-transformers counts them."""
        encoding = self._tokenizer.encode(prompt)
        closing = bool(encoding.special_tokens_mask and encoding.special_tokens_mask[-1])
        return len(encoding) - closing
