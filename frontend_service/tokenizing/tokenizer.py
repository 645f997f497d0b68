"""Texts of requests to token ids, by a model's own tokenizer, within the limits; and ids back to texts.

Also what reads queries otherwise: their expansion, and of inference-free SPLADE a tokenizer and a table of weights.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from tokenizers import Encoding, Tokenizer

from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing.listwise import Blocks, ListwiseTexts, ListwiseTokenizer
from frontend_service.tokenizing.messages import MessageWriter
from frontend_service.tokenizing.pairs import PairTexts, PairTokenizer
from frontend_service.tokenizing.spans import DocumentTokenizer, SpecialTokens
from frontend_service.tokenizing.tokens import (
    Chunks,
    PanicsAs,
    QueryExpander,
    TextReader,
    TokenizedBatch,
    TokenLimits,
    UntrainedTokens,
    in_chunks,
    shortened,
)
from shared.card import ModelCard, QueryRoute
from shared.errors import InputTooLong, InvalidInput, UnsupportedTask, clip
from shared.jobs import RaggedTokens
from shared.query_table import QUERY_TABLE_FILE, QUERY_TOKENIZER_FILE, TOKENIZER_FILE, WEIGHT_BYTES, QueryTable
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


CHUNK_IDS = 8192
"""Ids that are turned into texts in one chunk: a few milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedText:
    """One text as the model sees it.

    `read` is what was tokenised: the text behind its prompt, or in a chat message. `prompt_length`: tokens at its start
    that pooling leaves out. `expansion`: tokens at its end that were added to a query.
    """

    encoding: Encoding
    read: str = ""
    truncated: bool = False
    prompt_length: int = 0
    expansion: int = 0

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each token begins and ends in `read`, in characters; (0, 0) for special tokens."""
        return self.encoding.offsets


class ModelTokenizer:
    """The tokenizer of one model. Its methods may run in several threads at once."""

    def __init__(self, tokenizer_json: bytes, card: ModelCard) -> None:
        """`tokenizer_json`: the file's content. Raises ValueError where it is broken."""
        try:
            with PanicsAs(ValueError):
                self._load(tokenizer_json, card)
        except Exception as error:
            raise ValueError(f"tokenizer.json: {error}") from error

    def with_card(self, card: ModelCard) -> "ModelTokenizer":
        """The tokenizer of another model that reads the same file; both share what was read."""
        adapted = copy(self)
        adapted._read_card(card)
        return adapted

    @property
    def takes_prompts(self) -> bool:
        """Whether there is a place for a prompt: a chat template may have none."""
        return not self._card.message_templates or bool(self._card.prompted_message_templates)

    def _load(self, tokenizer_json: bytes, card: ModelCard) -> None:
        self.tokenizer = Tokenizer.from_buffer(tokenizer_json)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._expansion = QueryExpander(self.tokenizer, card)
        # Texts are cut after they are read and before special tokens are put around them, as the library does it:
        # offsets depend on it. The tokenizer for special tokens needs no added tokens, and shares the vocabulary.
        self._framing = Tokenizer(self.tokenizer.model)
        self._framing.post_processor, self.tokenizer.post_processor = self.tokenizer.post_processor, None
        self._reader = TextReader(self.tokenizer)
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
        self._messages = MessageWriter(card, self._encode) if card.message_templates else None
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
        numbers: Sequence[int] | None = None,
    ) -> TokenizedBatch:
        """Tokenises texts into one batch, at once; see `shown`. Raises InvalidInput for tokens without an embedding."""
        shown = list(self.shown(texts, prompt, cut, entry, input_type, numbers, offsets=False))
        sequences = [text.encoding.ids for text in shown]
        if self._untrained.exist:
            for number, ids in zip(range(len(texts)) if numbers is None else numbers, sequences, strict=True):
                self._untrained.check(ids, entry.format(number))
        return TokenizedBatch(
            tokens=RaggedTokens.of(sequences),
            truncated=tuple([text.truncated for text in shown]),
            prompt_lengths=tuple([text.prompt_length for text in shown]),
            unattended_tails=tuple([0 if self._expansion.attended else text.expansion for text in shown]),
        )

    def check_trained(self, ids: Sequence[int], entry: str) -> None:
        """Raises InvalidInput, which names the text `entry`, for a token that the model has no embedding for."""
        self._untrained.check(ids, entry)

    def text_chunks(
        self,
        texts: Sequence[str],
        prompt: str,
        cut: Truncation,
        entry: str,
        input_type: InputType = InputType.UNSPECIFIED,
        numbers: Sequence[int] | None = None,
    ) -> Chunks[TokenizedBatch]:
        """`texts` in chunks."""
        batches: list[TokenizedBatch] = []
        tokens = 0
        for chunk, chunk_numbers in _numbered_chunks(texts, prompt, numbers):
            batches.append(self.texts(chunk, prompt, cut, entry, input_type, chunk_numbers))
            tokens += batches[-1].tokens.total
            yield tokens
        return TokenizedBatch.joined(batches)

    def shown(
        self,
        texts: Sequence[str],
        prompt: str,
        cut: Truncation,
        entry: str,
        input_type: InputType = InputType.UNSPECIFIED,
        numbers: Sequence[int] | None = None,
        *,
        offsets: bool = True,
    ) -> Iterator[TokenizedText]:
        """Tokenises texts, each with the place of its tokens. One over the limit is cut or, without `truncate`, raises
        InputTooLong.

        `entry` is what errors call one of the texts: `texts[{}]`, or `query`; `numbers`: the number of each in its
        request, None where these are all texts of a request. `input_type`: whether they are queries or documents;
        late-interaction models have a limit for each, and some expand queries. `offsets`: also finds where tokens lie
        in their text, which takes a fifth more time.
        """
        limit, side = self._limits.resolve(cut, input_type), cut.side or self._card.truncation_side
        left_out, expands, messages = self._left_out(prompt), input_type is InputType.QUERY, self._messages
        if messages:
            read: Sequence[str] = [messages.message(text, prompt, input_type) for text in texts]
        else:
            read = [prompt + text for text in texts] if prompt else texts
        numbers = range(len(texts)) if numbers is None else numbers
        for number, text, encoding in zip(numbers, read, self._reader.encode(read, offsets=offsets), strict=True):
            length, prompt_length = len(encoding) + self._added, left_out
            truncated, whole = length > limit, encoding
            if truncated:
                prompt_length = self._check_cut(length, limit, cut, side, left_out, entry.format(number))
                if messages:
                    messages.check_room(limit, prompt, input_type, entry.format(number))
                encoding = shortened(encoding, limit - self._added, side)
            elif not length:
                raise _without_tokens(entry.format(number))
            # Special tokens come last, as in the library: a text that is cut first has other offsets.
            # test_cut_texts_equal_the_tokenizers_own (test_tokenization.py) holds this to the library's truncation.
            encoding = self._framing.post_process(encoding)
            if messages and length >= limit:
                encoding = messages.ended(encoding, self._framing.post_process(whole), prompt, input_type)
            yield TokenizedText(
                encoding=encoding,
                read=text,
                truncated=truncated,
                prompt_length=prompt_length,
                expansion=self._expansion.expand(encoding) if expands else 0,
            )

    def shown_chunks(
        self,
        texts: Sequence[str],
        prompt: str,
        cut: Truncation,
        entry: str,
        input_type: InputType = InputType.UNSPECIFIED,
        numbers: Sequence[int] | None = None,
    ) -> Iterator[list[TokenizedText]]:
        """`shown` in chunks."""
        for chunk, chunk_numbers in _numbered_chunks(texts, prompt, numbers):
            yield list(self.shown(chunk, prompt, cut, entry, input_type, chunk_numbers))

    def _check_cut(
        self, length: int, limit: int, cut: Truncation, side: TruncationSide, prompt_length: int, field: str
    ) -> int:
        """Checks that a text over the limit may be cut to it, and returns how many tokens of its prompt are left.

        Raises InputTooLong, and InvalidInput where a prompt would fill the limit.
        """
        if not cut.truncate:
            raise self._limits.too_long(field, length, limit, "truncate would cut it")
        if side is TruncationSide.LEFT and prompt_length:
            prompt_length = max(self._leading, prompt_length - (length - limit))
        if prompt_length and prompt_length >= limit - (self._added - self._leading):
            raise InvalidInput(
                f"{field}: the prompt fills the limit of {limit} tokens, nothing is left to pool", field=field
            )
        return prompt_length

    def pairs(self, texts: PairTexts) -> Chunks[TokenizedBatch]:
        """Tokenises pairs for a cross-encoder; see `PairTokenizer`. Raises for limits that the model cannot keep."""
        prompt = self.prompt(texts.prompt)
        is_chosen = texts.prompt.literal is not None or texts.prompt.name is not None
        for cut in (texts.first_cut, texts.second_cut):
            self._limits.check(cut)
        limit = self._limits.resolve(texts.cut)
        texts = replace(texts, limit_reason=self._limits.reason(limit))
        return self._pairs.tokenize(texts, prompt if prompt or is_chosen else None, limit)

    def blocks(self, texts: ListwiseTexts) -> Chunks[tuple[TokenizedBatch, Blocks]]:
        """Tokenises queries and documents for a listwise reranker; see `ListwiseTokenizer`."""
        assert self._listwise is not None
        return self._listwise.tokenize(texts)

    def token_ids(
        self, tokenized: Sequence[Sequence[int]], cut: Truncation, input_type: InputType = InputType.UNSPECIFIED
    ) -> TokenizedBatch:
        """Checks token ids of a request and packs them into one batch. A query may end with its expansion already.

        Raises InputTooLong over the limit: token ids are never cut. Raises InvalidInput for an id that the model lacks.
        """
        limit, expansions = self._limits.resolve(cut, input_type), []
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
        nothing = (0,) * len(tokenized)
        return TokenizedBatch(
            tokens=RaggedTokens.of(tokenized),
            truncated=(False,) * len(tokenized),
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
        """Turns ids into texts, some in each chunk. Raises InvalidInput for an id that the model lacks."""
        chunk_ids: list[list[int]] = []
        count = 0
        for index, ids in enumerate(tokenized):
            self._check_ids(ids, index)
            if chunk_ids and count + len(ids) > CHUNK_IDS:
                yield self.tokenizer.decode_batch(chunk_ids, skip_special_tokens=skip_special_tokens)
                chunk_ids, count = [], 0
            chunk_ids.append(list(ids))
            count += len(ids)
        yield self.tokenizer.decode_batch(chunk_ids, skip_special_tokens=skip_special_tokens)

    def _encode(self, text: str) -> Encoding:
        """A text with its special tokens."""
        return self._framing.post_process(self._reader.read(text))

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


def _numbered_chunks(
    texts: Sequence[str], prompt: str, numbers: Sequence[int] | None
) -> Iterator[tuple[list[str], Sequence[int]]]:
    """Texts in chunks, each with the numbers of its texts in the request; `numbers` None: these are all of them."""
    start, numbers = 0, range(len(texts)) if numbers is None else numbers
    for chunk in in_chunks(texts, len(prompt)):
        stop = start + len(chunk)
        yield chunk, numbers[start:stop]
        start = stop


def _without_tokens(field: str) -> InvalidInput:
    return InvalidInput(
        f"{field} has no tokens, and the model has no special ones that could stand for it", field=field
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTexts:
    """`tokenizer` is that of all texts, or of documents where there is a `query` tokenizer. `query_table`: the weights
    that queries are looked up in; None where a worker computes them."""

    tokenizer: ModelTokenizer
    query: ModelTokenizer | None = None
    query_table: QueryTable | None = None

    def with_card(self, card: ModelCard) -> "ModelTexts":
        """What reads the texts of an adapter over the model, by its card; all that was read is shared."""
        return replace(self, tokenizer=self.tokenizer.with_card(card))


def read_files(files: Mapping[str, bytes], card: ModelCard) -> ModelTexts:
    """Opens a worker's files, by their names. Raises ValueError where one is broken or missing."""
    content, route = files.get(TOKENIZER_FILE, b""), card.query_route
    tokenizer = ModelTokenizer(content, card)
    if route is None:
        return ModelTexts(tokenizer=tokenizer)
    query = ModelTokenizer(files.get(QUERY_TOKENIZER_FILE, content), card.of_queries(route))
    table = _query_table(files.get(QUERY_TABLE_FILE, b""), route) if route.table_digest else None
    return ModelTexts(tokenizer=tokenizer, query=query, query_table=table)


def _query_table(content: bytes, route: QueryRoute) -> QueryTable:
    """The table of a card. Raises ValueError for another one, and for one that no sparse vector could be made of."""
    if len(content) != WEIGHT_BYTES * route.vocabulary_size:
        raise ValueError(f"the query table has {len(content)} bytes for {route.vocabulary_size} token ids")
    if hashlib.sha256(content).hexdigest() != route.table_digest:
        raise ValueError("the query table is not the one that the card names")
    return QueryTable(np.frombuffer(content, dtype="<f4").astype(np.float32))
