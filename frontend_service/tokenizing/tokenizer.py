"""Texts <-> token ids, exactly as the model was trained: prompts, special tokens, truncation, query expansion.

Works in slices (`frontend_service/tokenizing/fair_threads.py`), wherever those are run.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tokenizers import Encoding, Tokenizer

from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_threads import Slices
from frontend_service.tokenizing.pairs.pairs import PairTexts
from frontend_service.tokenizing.pairs.tokenizer import PairTokenizer
from frontend_service.tokenizing.panics import panics_as
from frontend_service.tokenizing.prefix import Need, PrefixRead, PrefixReader
from frontend_service.tokenizing.query_expansion import QueryFiller
from frontend_service.tokenizing.token_limits import TokenLimits
from frontend_service.tokenizing.truncation import shortened
from frontend_service.tokenizing.untrained_tokens import Beyond
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
    a query. `start`: letters of the text before those that `encoding` knows.
    """

    encoding: Encoding
    truncated: bool = False
    prompt_length: int = 0
    expansion: int = 0
    start: int = 0

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each token begins and ends in the text with its prompt, in characters; special ones nowhere: 0, 0."""
        offsets, start = self.encoding.offsets, self.start
        if not start:
            return offsets
        special = self.encoding.special_tokens_mask
        return [each if own else (each[0] + start, each[1] + start) for each, own in zip(offsets, special, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """What each text of a request must fit: `limit` tokens, of which the first `prompt` are left out of pooling."""

    limit: int
    cut: Truncation
    side: TruncationSide
    prompt: int


SLICE_IDS = 8192
"""Ids that are checked, or turned back into text, in one slice: a few milliseconds."""


class ModelTokenizer:
    """The tokenizer of one model. Its methods may run in several threads at once."""

    def __init__(self, tokenizer_json: bytes, card: ModelCard) -> None:
        """Raises ValueError where the file is broken."""
        try:
            with panics_as(ValueError):
                self._load(tokenizer_json, card)
        except Exception as error:
            raise ValueError(f"tokenizer.json: {error}") from error
        self._prompt_length = lru_cache(maxsize=16)(self._measure_prompt)

    def _load(self, tokenizer_json: bytes, card: ModelCard) -> None:
        self.tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._card = card
        self._expansion = QueryFiller(self.tokenizer, card)
        # Texts are cut between reading and framing, as the library does it: offsets depend on it. Framing alone needs
        # no added tokens, and the vocabulary is shared.
        self._framing = Tokenizer(self.tokenizer.model)
        self._framing.post_processor, self.tokenizer.post_processor = self.tokenizer.post_processor, None
        self._reader = PrefixReader(self.tokenizer)
        self._added = self._framing.num_special_tokens_to_add(is_pair=False)
        self._leading = (*self._framed("a").special_tokens_mask, 0).index(0)
        self._limits = TokenLimits(card, self._added)
        self._beyond = Beyond(self.tokenizer, card.vocabulary_size)
        self._pairs = PairTokenizer(self._reader, self._framing, card, self._beyond)

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
        self, texts: Sequence[str], prompt: str, cut: Truncation, entry: str, side: InputType = InputType.UNSPECIFIED
    ) -> Slices[TokenizedBatch]:
        """Tokenises and packs; see `each`."""
        ids, lengths, prompts, tails = array("i"), [], [], []
        truncated: list[bool] = []
        for some in self.each(texts, prompt, cut, entry, side, offsets=False):
            for text in some:
                own = text.encoding.ids
                self._beyond.check(own, entry.format(len(truncated)))
                ids.extend(own)
                lengths.append(len(own))
                truncated.append(text.truncated)
                prompts.append(text.prompt_length)
                tails.append(0 if self._expansion.attended else text.expansion)
            yield len(ids)
        return TokenizedBatch(
            tokens=RaggedTokens.packed(ids, lengths),
            truncated=tuple(truncated),
            prompt_lengths=tuple(prompts),
            tails=tuple(tails),
        )

    def each(
        self,
        texts: Sequence[str],
        prompt: str,
        cut: Truncation,
        entry: str,
        side: InputType = InputType.UNSPECIFIED,
        *,
        offsets: bool = True,
    ) -> Iterator[list[TokenizedText]]:
        """Tokenises, some texts a slice; one over the limit is cut or, without `truncate`, refused as INPUT_TOO_LONG.

        `entry` is what errors call one of the texts: `texts[{}]`, or `query`. `side`: what they are; queries of some
        late-interaction models are expanded. `offsets`: also where tokens lie in their text, a fifth more time.
        """
        pooled = not prompt or self._card.include_prompt
        fit = _Fit(
            limit=self._limits.of(cut, side),
            cut=cut,
            side=cut.side or self._card.truncation_side,
            prompt=0 if pooled else self._prompt_length(prompt),
        )
        # One token more than may stay tells that the text is over the limit. So many more than the prompt has tell
        # that nothing of it stays.
        over = 1 + (fit.prompt if fit.side is TruncationSide.LEFT else 0)
        need, first = Need(tokens=fit.limit - self._added + over, cut=fit.side), 0
        for reads in self._reader.batches((prompt + text for text in texts), need, offsets=offsets):
            some = [self._fitted(read, fit, entry.format(number)) for number, read in enumerate(reads, first)]
            first += len(some)
            yield [self._expanded(text) for text in some] if side is InputType.QUERY else some

    def pairs(self, texts: PairTexts) -> Slices[TokenizedBatch]:
        """Pairs for a cross-encoder; see `PairTokenizer`."""
        prompt = self.prompt(texts.prompt)
        chosen = texts.prompt.literal is not None or texts.prompt.name is not None
        asked = prompt if prompt or chosen else None
        for side in (texts.first_cut, texts.second_cut):
            self._limits.check(side)
        return self._pairs.tokenize(texts, asked, self._limits.of(texts.cut))

    def _expanded(self, text: TokenizedText) -> TokenizedText:
        """A query with the tokens that its model adds."""
        return replace(text, expansion=self._expansion.expand(text.encoding))

    def _fitted(self, read: PrefixRead, fit: _Fit, field: str) -> TokenizedText:
        """A text and its prompt, given without special tokens, with them and within the limit, or refused."""
        encoding, limit, prompt_length = read.encoding, fit.limit, fit.prompt
        length = len(encoding) + self._added  # at least, where the text is not read to its end
        if not length:
            raise InvalidInput(
                f"{field} has no tokens, and the model has no special ones that could stand for it", field=field
            )
        if length <= limit:
            return TokenizedText(encoding=self._framing.post_process(encoding), prompt_length=prompt_length)
        if not fit.cut.truncate:
            has = f"{length} tokens" if read.whole else f"more than {limit} tokens"
            raise InputTooLong(f"{field} has {has}, the limit is {limit}; truncate would cut it", field=field)
        if fit.side is TruncationSide.LEFT and prompt_length:
            prompt_length = max(self._leading, prompt_length - (length - limit))
        if prompt_length and prompt_length >= limit - (self._added - self._leading):
            raise InvalidInput(
                f"{field}: the prompt fills the limit of {limit} tokens, nothing is left to pool", field=field
            )
        return TokenizedText(
            encoding=self._framing.post_process(shortened(encoding, limit - self._added, fit.side)),
            truncated=True,
            prompt_length=prompt_length,
            start=read.start,
        )

    def given(
        self, tokenized: Sequence[Sequence[int]], cut: Truncation, side: InputType = InputType.UNSPECIFIED
    ) -> Slices[TokenizedBatch]:
        """Checks ids that the caller brought. An expansion that a query has already is known as such."""
        limit, expands, expansions, total, told = self._limits.of(cut, side), side is InputType.QUERY, [], 0, 0
        for index, ids in enumerate(tokenized):
            expansions.append(self._expansion.trailing(ids) if expands else 0)
            own = len(ids) - expansions[-1]
            if own > limit:
                never = "; token ids are never cut" if cut.truncate else ""
                raise InputTooLong(
                    f"tokenized[{index}] has {own} tokens, the limit is {limit}{never}", field=f"tokenized[{index}]"
                )
            self._check_ids(ids, index)
            total += len(ids)
            if total - told >= SLICE_IDS:
                yield (told := total)
        nothing = (0,) * len(tokenized)
        return TokenizedBatch(
            tokens=RaggedTokens.of(tokenized),
            truncated=tuple(map(bool, nothing)),
            prompt_lengths=nothing,
            tails=nothing if self._expansion.attended else tuple(expansions),
        )

    def _check_ids(self, ids: Sequence[int], index: int) -> None:
        """Raises InvalidInput for an id that the model lacks."""
        size = self._card.vocabulary_size
        if ids and (min(ids) < 0 or max(ids) >= size):
            wrong = next(identity for identity in ids if not 0 <= identity < size)
            raise InvalidInput(
                f"tokenized[{index}] has the id {wrong}, the vocabulary ends at {size - 1}", field=f"tokenized[{index}]"
            )

    def written(self, identity: int) -> str:
        """A token id as the vocabulary writes it; empty for one that it lacks."""
        return self.tokenizer.id_to_token(identity) or ""

    def detokenize(self, tokenized: Sequence[Sequence[int]], skip_special_tokens: bool) -> Iterator[list[str]]:
        """Ids back to texts, some lists a slice. Raises InvalidInput for an id that the model lacks."""
        some: list[list[int]] = []
        held = 0
        for index, ids in enumerate(tokenized):
            self._check_ids(ids, index)
            if some and held + len(ids) > SLICE_IDS:
                yield self.tokenizer.decode_batch(some, skip_special_tokens=skip_special_tokens)
                some, held = [], 0
            some.append(list(ids))
            held += len(ids)
        yield self.tokenizer.decode_batch(some, skip_special_tokens=skip_special_tokens)

    def _framed(self, text: str) -> Encoding:
        """A text with its special tokens."""
        return self._framing.post_process(self._reader.read(text).encoding)

    def _measure_prompt(self, prompt: str) -> int:
        """Tokens of a prompt alone without the closing special token, as sentence-transformers counts them."""
        encoding = self._framed(prompt)
        closing = bool(encoding.special_tokens_mask and encoding.special_tokens_mask[-1])
        return len(encoding) - closing
