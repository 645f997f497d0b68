"""Texts <-> token ids, exactly as the model was trained: prompts, special tokens, truncation, query expansion.

Runs in threads.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tokenizers import Encoding, Tokenizer

from frontend_service.pair_tokenizer import PairTokenizer
from frontend_service.pairs import PairTexts
from frontend_service.query_expansion import QueryFiller
from frontend_service.requests import Cut, PromptChoice
from frontend_service.token_limits import TokenLimits
from frontend_service.tokenized import Tokenized, Watch, slices
from shared.card import ModelCard
from shared.errors import InputTooLong, InvalidInput, UnsupportedTask, clip
from shared.ragged import RaggedTokens
from shared.vectors import InputType, TruncationSide

PROMPT_NAMES = {
    InputType.UNSPECIFIED: (),
    InputType.QUERY: ("query",),
    InputType.DOCUMENT: ("document", "passage", "corpus"),  # the order in which sentence-transformers looks
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedText:
    """One text as the model sees it.

    `prompt_length` are the tokens at its start that pooling leaves out, `expansion` those at its end that were added to
    a query.
    """

    encoding: Encoding
    truncated: bool = False
    prompt_length: int = 0
    expansion: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """What each text of a request must fit: `limit` tokens, of which the first `prompt` are left out of pooling."""

    limit: int
    cut: Cut
    prompt: int


class Tokenization:
    """The tokenizer of one model. Its methods may run in several threads at once."""

    def __init__(self, tokenizer_json: bytes, card: ModelCard) -> None:
        self.tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._card = card
        self._expansion = QueryFiller(self.tokenizer, card)
        # Texts are cut between reading and framing, as the library does it: offsets depend on it. Framing alone needs
        # no added tokens, and the vocabulary is shared.
        self._framing = Tokenizer(self.tokenizer.model)
        self._framing.post_processor, self.tokenizer.post_processor = self.tokenizer.post_processor, None
        self._added = self._framing.num_special_tokens_to_add(is_pair=False)
        self._leading = (*self._framed("a").special_tokens_mask, 0).index(0)
        self._limits = TokenLimits(card, self._added)
        self._pairs = PairTokenizer(self.tokenizer, self._framing, card)
        self._prompt_length = lru_cache(maxsize=16)(self._measure_prompt)

    def prompt(self, choice: PromptChoice) -> str:
        """The text that goes before each text. Raises UnsupportedTask for a name that the model lacks."""
        prompts = self._card.prompts
        if choice.literal is not None:
            return choice.literal
        if choice.name is not None:
            if choice.name not in prompts:
                known = f"it has {', '.join(sorted(prompts))}" if prompts else "it has none"
                raise UnsupportedTask(f"the model has no prompt {clip(choice.name)}; {known}", field="prompt_name")
            return prompts[choice.name]
        names = (*PROMPT_NAMES[choice.input_type], self._card.default_prompt_name)
        return next((prompts[name] for name in names if name in prompts), "")

    def texts(
        self,
        texts: Sequence[str],
        prompt: str,
        cut: Cut,
        entry: str,
        watch: Watch,
        side: InputType = InputType.UNSPECIFIED,
    ) -> Tokenized:
        """Tokenises and packs; see `each`."""
        ids, lengths, truncated, prompts, tails = array("i"), [], [], [], []
        for text in self.each(texts, prompt, cut, entry, watch, side, offsets=False):
            ids.extend(text.encoding.ids)
            lengths.append(len(text.encoding))
            truncated.append(text.truncated)
            prompts.append(text.prompt_length)
            tails.append(0 if self._expansion.attended else text.expansion)
        return Tokenized(
            tokens=RaggedTokens.packed(ids, lengths),
            truncated=tuple(truncated),
            prompt_lengths=tuple(prompts),
            tails=tuple(tails),
        )

    def each(
        self,
        texts: Sequence[str],
        prompt: str,
        cut: Cut,
        entry: str,
        watch: Watch,
        side: InputType = InputType.UNSPECIFIED,
        *,
        offsets: bool = True,
    ) -> Iterator[TokenizedText]:
        """Tokenises; a text over the limit is cut or, without `truncate`, refused as INPUT_TOO_LONG.

        `entry` is what errors call one of the texts: `texts[{}]`, or `query`. `side`: what they are; queries of some
        late-interaction models are expanded. `offsets`: also where tokens lie in their text, a fifth more time.
        """
        encode = self.tokenizer.encode_batch if offsets else self.tokenizer.encode_batch_fast
        pooled = not prompt or self._card.include_prompt
        fit = _Fit(limit=self._limits.of(cut, side), cut=cut, prompt=0 if pooled else self._prompt_length(prompt))
        total = 0
        for start, stop in slices([len(prompt) + len(text) for text in texts]):
            for index, encoding in enumerate(encode([prompt + each for each in texts[start:stop]])):
                text = self._fitted(encoding, fit, entry.format(start + index))
                if side is InputType.QUERY:
                    text = replace(text, expansion=self._expansion.expand(text.encoding))
                total += len(text.encoding)
                yield text
            watch(total)

    def pairs(self, texts: PairTexts, watch: Watch) -> Tokenized:
        """Pairs for a cross-encoder; see `PairTokenizer`."""
        prompt = self.prompt(texts.prompt)
        chosen = texts.prompt.literal is not None or texts.prompt.name is not None
        asked = prompt if prompt or chosen else None
        for side in (texts.first_cut, texts.second_cut):
            self._limits.check(side)
        return self._pairs.tokenize(texts, asked, self._limits.of(texts.cut), watch)

    def _fitted(self, encoding: Encoding, fit: _Fit, field: str) -> TokenizedText:
        """A text and its prompt, given without special tokens, with them and within the limit, or refused."""
        length, limit, prompt_length = len(encoding) + self._added, fit.limit, fit.prompt
        if not length:
            raise InvalidInput(
                f"{field} has no tokens, and the model has no special ones that could stand for it", field=field
            )
        if length <= limit:
            return TokenizedText(encoding=self._framing.post_process(encoding), prompt_length=prompt_length)
        if not fit.cut.truncate:
            raise InputTooLong(f"{field} has {length} tokens, the limit is {limit}; truncate would cut it", field=field)
        side = fit.cut.side or self._card.truncation_side
        if side is TruncationSide.LEFT and prompt_length:
            prompt_length = max(self._leading, prompt_length - (length - limit))
        if prompt_length and prompt_length >= limit - (self._added - self._leading):
            raise InvalidInput(
                f"{field}: the prompt fills the limit of {limit} tokens, nothing is left to pool", field=field
            )
        encoding.truncate(limit - self._added, direction=side.name.lower())
        return TokenizedText(encoding=self._framing.post_process(encoding), truncated=True, prompt_length=prompt_length)

    def given(self, tokenized: Sequence[Sequence[int]], cut: Cut, side: InputType = InputType.UNSPECIFIED) -> Tokenized:
        """Checks ids that the caller brought. An expansion that a query has already is known as such."""
        limit, size = self._limits.of(cut, side), self._card.vocabulary_size
        expands = side is InputType.QUERY
        expansions = [self._expansion.trailing(ids) if expands else 0 for ids in tokenized]
        for index, ids in enumerate(tokenized):
            own = len(ids) - expansions[index]
            if own > limit:
                raise InputTooLong(
                    f"tokenized[{index}] has {own} tokens, the limit is {limit}", field=f"tokenized[{index}]"
                )
            if min(ids) < 0 or max(ids) >= size:
                wrong = next(identity for identity in ids if not 0 <= identity < size)
                raise InvalidInput(
                    f"tokenized[{index}] has the id {wrong}, the vocabulary ends at {size - 1}",
                    field=f"tokenized[{index}]",
                )
        nothing = (0,) * len(tokenized)
        return Tokenized(
            tokens=RaggedTokens.of(tokenized),
            truncated=tuple(map(bool, nothing)),
            prompt_lengths=nothing,
            tails=nothing if self._expansion.attended else tuple(expansions),
        )

    def written(self, identity: int) -> str:
        """A token id as the vocabulary writes it; empty for one that it lacks."""
        return self.tokenizer.id_to_token(identity) or ""

    def detokenize(self, tokenized: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        """Ids back to texts."""
        return self.tokenizer.decode_batch([list(ids) for ids in tokenized], skip_special_tokens=skip_special_tokens)

    def _framed(self, text: str) -> Encoding:
        """A text with its special tokens."""
        return self._framing.post_process(self.tokenizer.encode(text))

    def _measure_prompt(self, prompt: str) -> int:
        """Tokens of a prompt alone without the closing special token, as sentence-transformers counts them."""
        encoding = self._framed(prompt)
        closing = bool(encoding.special_tokens_mask and encoding.special_tokens_mask[-1])
        return len(encoding) - closing
