"""Texts to token ids, as the model was trained: prompts, special tokens, truncation, query expansion; and ids to texts.

Works in slices (`frontend_service/tokenizing/fair_thread_pool.py`) and does not care where these run.
"""

from array import array
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache

from tokenizers import Encoding, Tokenizer

from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.documents import DocumentTokenizer, SpecialTokens
from frontend_service.tokenizing.fair_thread_pool import TimeSlices
from frontend_service.tokenizing.listwise import Blocks, ListwiseTexts, ListwiseTokenizer
from frontend_service.tokenizing.pairs.pairs import PairTexts
from frontend_service.tokenizing.pairs.tokenizer import PairTokenizer
from frontend_service.tokenizing.panics import panics_as
from frontend_service.tokenizing.prefix import Need, PrefixRead, PrefixReader
from frontend_service.tokenizing.query_expansion import QueryExpander
from frontend_service.tokenizing.token_limits import TokenLimits
from frontend_service.tokenizing.tokenized_text import TokenizedText
from frontend_service.tokenizing.truncation import shortened
from frontend_service.tokenizing.untrained_tokens import UntrainedTokens
from shared.card import ModelCard
from shared.errors import InputTooLong, InvalidInput, UnsupportedTask, clip
from shared.jobs import RaggedTokens
from shared.vectors import InputType, TruncationSide

PROMPT_NAMES = {
    InputType.UNSPECIFIED: (),
    InputType.QUERY: ("query",),
    InputType.DOCUMENT: ("document", "passage", "corpus"),  # the order in which sentence-transformers looks
}


GENERAL_TASKS = (
    "retrieval.query",
    "retrieval.passage",
    "text-matching",
    "classification",
    "clustering",
    "separation",
)
"""Jina's tasks for which a model needs no prompt of that name: the kind of text decides, as without a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TextBounds:
    """How texts of a request are cut: as `cut` says, to `limit` tokens, special ones included, at the end `side`.

    `prompt`: tokens of the prompt before each, if pooling leaves them out; else 0.
    """

    limit: int
    cut: Truncation
    side: TruncationSide
    prompt: int


SLICE_IDS = 8192
"""Ids that are checked, or turned into texts, in one slice: a few milliseconds."""


class ModelTokenizer:
    """The tokenizer of one model. Its methods may run in several threads at once."""

    def __init__(self, tokenizer_json: bytes, card: ModelCard) -> None:
        """`tokenizer_json`: the file's content. Raises ValueError where it is broken."""
        try:
            with panics_as(ValueError):
                self._load(tokenizer_json, card)
        except Exception as error:
            raise ValueError(f"tokenizer.json: {error}") from error

    def with_card(self, card: ModelCard) -> "ModelTokenizer":
        """The tokenizer of another model that reads the same file; both share what was read."""
        other = copy(self)
        other._read_card(card)
        return other

    def _load(self, tokenizer_json: bytes, card: ModelCard) -> None:
        self.tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._expansion = QueryExpander(self.tokenizer, card)
        # Texts are cut after they are read and before special tokens are put around them, as the library does it:
        # offsets depend on it. The tokenizer for special tokens needs no added tokens, and shares the vocabulary.
        self._framing = Tokenizer(self.tokenizer.model)
        self._framing.post_processor, self.tokenizer.post_processor = self.tokenizer.post_processor, None
        self._reader = PrefixReader(self.tokenizer)
        self._added = self._framing.num_special_tokens_to_add(is_pair=False)  # around every text
        self._leading = (*self._encode("a").special_tokens_mask, 0).index(0)  # of these, before the text
        self._untrained = UntrainedTokens(self.tokenizer, card.vocabulary_size)
        self._read_card(card)

    def _read_card(self, card: ModelCard) -> None:
        """Takes prompts and limits from a card; expansion and vocabulary are the same for all models of a file."""
        self._card = card
        self._limits = TokenLimits(card, self._added)
        self._pairs = PairTokenizer(self._reader, self._framing, card, self._untrained)
        self._prompt_length = lru_cache(maxsize=16)(self._measure_prompt)
        special = SpecialTokens(leading=self._leading, added=self._added)
        self.documents = DocumentTokenizer(
            self._reader, self._framing, special, self._limits, self._untrained, self._left_out
        )
        self._listwise = None
        if card.listwise is not None:
            self._listwise = ListwiseTokenizer(
                self._reader, self._framing, card, card.listwise, self._limits, self._untrained
            )

    def prompt(self, choice: PromptChoice) -> str:
        """The text that goes before each text. Raises UnsupportedTask for a name or a task that the model lacks."""
        prompts = self._card.prompts
        names = (*PROMPT_NAMES[choice.input_type], self._card.default_prompt_name)
        if choice.task is not None:  # jina-embeddings-v3 names prompts as tasks; jina-code-embeddings: nl2code_document
            plain = choice.task.replace(".", "_")
            task_names = (choice.task, plain, plain.replace("_passage", "_document"))
            if choice.task not in GENERAL_TASKS and not prompts.keys() & task_names:
                tasks = ", ".join(dict.fromkeys((*sorted(prompts), *GENERAL_TASKS)))
                raise UnsupportedTask(f"the model has no task {clip(choice.task)}; it has {tasks}", field="task")
            names = (*task_names, *names)
        if choice.literal is not None:
            return choice.literal
        if choice.name is not None:
            if choice.name not in prompts:
                available = f"it has {', '.join(sorted(prompts))}" if prompts else "it has none"
                raise UnsupportedTask(f"the model has no prompt {clip(choice.name)}; {available}", field="prompt_name")
            return prompts[choice.name]
        return next((prompts[name] for name in names if name in prompts), "")

    def texts(
        self,
        texts: Sequence[str],
        prompt: str,
        cut: Truncation,
        entry: str,
        input_type: InputType = InputType.UNSPECIFIED,
    ) -> TimeSlices[TokenizedBatch]:
        """Tokenises texts into one batch; see `text_slices`. Raises InvalidInput for tokens without an embedding."""
        ids, lengths, prompts, tails = array("i"), [], [], []
        truncated: list[bool] = []
        for slice_texts in self.text_slices(texts, prompt, cut, entry, input_type, offsets=False):
            for text in slice_texts:
                text_ids = text.encoding.ids
                self._untrained.check(text_ids, entry.format(len(truncated)))
                ids.extend(text_ids)
                lengths.append(len(text_ids))
                truncated.append(text.truncated)
                prompts.append(text.prompt_length)
                tails.append(0 if self._expansion.attended else text.expansion)
            yield len(ids)
        return TokenizedBatch(
            tokens=RaggedTokens.packed(ids, lengths),
            truncated=tuple(truncated),
            prompt_lengths=tuple(prompts),
            unattended_tails=tuple(tails),
        )

    def text_slices(
        self,
        texts: Sequence[str],
        prompt: str,
        cut: Truncation,
        entry: str,
        input_type: InputType = InputType.UNSPECIFIED,
        *,
        offsets: bool = True,
    ) -> Iterator[list[TokenizedText]]:
        """Tokenises texts, some in each slice. One over the limit is cut or, without `truncate`, raises InputTooLong.

        `entry` is what errors call one of the texts: `texts[{}]`, or `query`. `input_type`: whether they are queries or
        documents; late-interaction models have a limit for each, and some expand queries. `offsets`: also finds where
        tokens lie in their text, which takes a fifth more time.
        """
        bounds = _TextBounds(
            limit=self._limits.resolve(cut, input_type),
            cut=cut,
            side=cut.side or self._card.truncation_side,
            prompt=self._left_out(prompt),
        )
        # A long text is read only as far as its limit needs, so fewer tokens here would change results. One token more
        # than may stay shows that the text is over the limit. Cut at the left, as many more as the prompt has show how
        # many of the prompt's tokens are cut off, which `_fit` counts. test_cut_texts_equal_the_tokenizers_own and
        # test_long_texts_of_which_only_a_part_is_read_equal_the_tokenizers_own (test_tokenization.py) hold both methods
        # to the library's own truncation, test_a_cut_prompt_is_left_out_of_pooling_as_far_as_it_survived to the prompt.
        over = 1 + (bounds.prompt if bounds.side is TruncationSide.LEFT else 0)
        need, first = Need(tokens=bounds.limit - self._added + over, cut_side=bounds.side, most_bytes=cut.text_bytes), 0
        for reads in self._reader.read_batches((prompt + text for text in texts), need, offsets=offsets):
            slice_texts = [self._fit(read, bounds, entry.format(number)) for number, read in enumerate(reads, first)]
            first += len(slice_texts)
            yield [self._expand(text) for text in slice_texts] if input_type is InputType.QUERY else slice_texts

    def pairs(self, texts: PairTexts) -> TimeSlices[TokenizedBatch]:
        """Tokenises pairs for a cross-encoder; see `PairTokenizer`. Raises for limits that the model cannot keep."""
        prompt = self.prompt(texts.prompt)
        is_chosen = texts.prompt.literal is not None or texts.prompt.name is not None
        for cut in (texts.first_cut, texts.second_cut):
            self._limits.check(cut)
        limit = self._limits.resolve(texts.cut)
        texts = replace(texts, limit_reason=self._limits.reason(limit))
        return self._pairs.tokenize(texts, prompt if prompt or is_chosen else None, limit)

    def blocks(self, texts: ListwiseTexts) -> TimeSlices[tuple[TokenizedBatch, Blocks]]:
        """Tokenises queries and documents for a listwise reranker; see `ListwiseTokenizer`."""
        assert self._listwise is not None
        return self._listwise.tokenize(texts)

    def _expand(self, text: TokenizedText) -> TokenizedText:
        """A query with the tokens that its model adds."""
        return replace(text, expansion=self._expansion.expand(text.encoding))

    def _fit(self, read: PrefixRead, bounds: _TextBounds, field: str) -> TokenizedText:
        """Cuts a text with its prompt to the limit, and puts special tokens around it. Raises InputTooLong.

        Special tokens come last, as in the library: a text that is cut first has other offsets. The tests that hold
        this are named in `text_slices`.
        """
        read.check(field)
        encoding, limit, prompt_length = read.encoding, bounds.limit, bounds.prompt
        length = len(encoding) + self._added  # a lower bound where the text is not read to its end
        if not length:
            raise InvalidInput(
                f"{field} has no tokens, and the model has no special ones that could stand for it", field=field
            )
        if length <= limit:
            return TokenizedText(encoding=self._framing.post_process(encoding), prompt_length=prompt_length)
        if not bounds.cut.truncate:
            raise self._limits.too_long(field, length, limit, "truncate would cut it", whole=read.whole)
        if bounds.side is TruncationSide.LEFT and prompt_length:
            prompt_length = max(self._leading, prompt_length - (length - limit))
        if prompt_length and prompt_length >= limit - (self._added - self._leading):
            raise InvalidInput(
                f"{field}: the prompt fills the limit of {limit} tokens, nothing is left to pool", field=field
            )
        return TokenizedText(
            encoding=self._framing.post_process(shortened(encoding, limit - self._added, bounds.side)),
            truncated=True,
            prompt_length=prompt_length,
            start=read.start,
        )

    def token_ids(
        self, tokenized: Sequence[Sequence[int]], cut: Truncation, input_type: InputType = InputType.UNSPECIFIED
    ) -> TimeSlices[TokenizedBatch]:
        """Checks token ids of a request and packs them into one batch. A query may end with its expansion already.

        Raises InputTooLong over the limit: token ids are never cut. Raises InvalidInput for an id that the model lacks.
        """
        limit, expansions = self._limits.resolve(cut, input_type), []
        total = yielded = 0
        for index, ids in enumerate(tokenized):
            expansions.append(self._expansion.expansion_length(ids) if input_type is InputType.QUERY else 0)
            length = len(ids) - expansions[-1]
            if length > limit:
                never = "; token ids are never cut" if cut.truncate else ""
                why = self._limits.reason(limit)
                raise InputTooLong(
                    f"tokenized[{index}] has {length} tokens, the limit is {limit}{why}{never}",
                    field=f"tokenized[{index}]",
                )
            self._check_ids(ids, index)
            total += len(ids)
            if total - yielded >= SLICE_IDS:
                yield (yielded := total)
        nothing = (0,) * len(tokenized)
        return TokenizedBatch(
            tokens=RaggedTokens.of(tokenized),
            truncated=tuple(map(bool, nothing)),
            prompt_lengths=nothing,
            unattended_tails=nothing if self._expansion.attended else tuple(expansions),
        )

    def _check_ids(self, ids: Sequence[int], index: int) -> None:
        """Raises InvalidInput for an id that the model lacks."""
        size = self._card.vocabulary_size
        if ids and (min(ids) < 0 or max(ids) >= size):
            wrong = next(token_id for token_id in ids if not 0 <= token_id < size)
            raise InvalidInput(
                f"tokenized[{index}] has the id {wrong}, the vocabulary ends at {size - 1}", field=f"tokenized[{index}]"
            )

    def token_text(self, token_id: int) -> str:
        """A token as the vocabulary writes it; empty for an id that it lacks."""
        return self.tokenizer.id_to_token(token_id) or ""

    def detokenize(self, tokenized: Sequence[Sequence[int]], skip_special_tokens: bool) -> Iterator[list[str]]:
        """Turns ids into texts, some in each slice. Raises InvalidInput for an id that the model lacks."""
        slice_ids: list[list[int]] = []
        count = 0
        for index, ids in enumerate(tokenized):
            self._check_ids(ids, index)
            if slice_ids and count + len(ids) > SLICE_IDS:
                yield self.tokenizer.decode_batch(slice_ids, skip_special_tokens=skip_special_tokens)
                slice_ids, count = [], 0
            slice_ids.append(list(ids))
            count += len(ids)
        yield self.tokenizer.decode_batch(slice_ids, skip_special_tokens=skip_special_tokens)

    def _encode(self, text: str) -> Encoding:
        """A text with its special tokens."""
        return self._framing.post_process(self._reader.read(text).encoding)

    def _left_out(self, prompt: str) -> int:
        """Tokens at the start of a text with this prompt that pooling leaves out."""
        return 0 if not prompt or self._card.include_prompt else self._prompt_length(prompt)

    def _measure_prompt(self, prompt: str) -> int:
        """Tokens of a prompt by itself without a special token at its end, as sentence-transformers counts them.

        A special one there may also be the prompt's own, where the tokenizer puts none behind a text.
        """
        ids = self._encode(prompt).ids
        special = {*self._card.special_ids, *self._card.special_tokens.values()}  # a card may lack the former
        return len(ids) - (ids[-1:] != [] and ids[-1] in special)
