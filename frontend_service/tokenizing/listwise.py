"""Queries and documents to the blocks of a listwise reranker: texts that hold a query and many documents.

Which documents share a block, and how a block is written, is as the model's own code does it: jina-reranker-v3.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tokenizers import Tokenizer

from frontend_service.domain.requests import DEFAULT_TRUNCATION, Truncation
from frontend_service.tokenizing.tokens import (
    Chunks,
    TextReader,
    TokenizedBatch,
    TokenLimits,
    UntrainedTokens,
    shortened,
)
from shared.card import PLACE, Listwise, ModelCard
from shared.errors import InputTooLong, InvalidInput
from shared.jobs import RaggedTokens, TokenRanges
from shared.vectors import InputType

INSTRUCTION_SHARE, QUERY_SHARE = 2, 4
"""An instruction has at most half of a block's room for texts, and a query, which stands there twice, a quarter of the
rest: so half of that is left for documents. A model with a context of its own size has lower limits."""
JOIN_TOKENS = 32
"""Tokens that texts cut within a letter may have more in their block: a byte of a letter reads as U+FFFD, three bytes;
at most three are left, in a document and twice in a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListwiseTexts:
    """Queries and documents: every query with all documents (`matrix`), or query i with document i.

    `entry` and `query_entry` are what errors call one of them. The cuts are for a text alone.
    """

    queries: Sequence[str]
    documents: Sequence[str]
    matrix: bool
    query_cut: Truncation = DEFAULT_TRUNCATION
    document_cut: Truncation = DEFAULT_TRUNCATION
    query_entry: str = "queries[{}]"
    entry: str = "documents[{}]"
    instruction: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks of a request, those of a query after each other.

    `documents` [B]: documents of each block. `counts` [Q]: blocks of each query.
    """

    documents: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """A text within its limit, without markers; its `tokens` by itself, before these were taken out."""

    text: str
    tokens: int
    truncated: bool


@dataclass(slots=True)
class _BlockSequences:
    """The sequences of all blocks so far, and the places of their markers."""

    ids: "array[int]" = field(default_factory=lambda: array("i"))
    lengths: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    markers: list[int] = field(default_factory=list)

    def batch(self, texts: Sequence[_Fitted]) -> TokenizedBatch:
        """All of them as a job needs them, with what is told of each text."""
        return TokenizedBatch(
            tokens=RaggedTokens.packed(self.ids, self.lengths),
            truncated=tuple(text.truncated for text in texts),
            prompt_lengths=(0,) * len(self.lengths),
            ranges=TokenRanges(
                counts=tuple(documents + 1 for documents in self.documents),
                starts=tuple(self.markers),
                stops=tuple(marker + 1 for marker in self.markers),
            ),
            token_counts=tuple(text.tokens for text in texts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The texts of a block. `first`: the place of its first document in the request, which errors call `entry`."""

    query: str
    instruction: str
    documents: Sequence[str]
    first: int
    entry: str

    @property
    def name(self) -> str:
        """What errors call its first document."""
        return self.entry.format(self.first)

    def halves(self) -> "tuple[Block, Block]":
        """Two blocks with half of the documents each."""
        half = len(self.documents) // 2
        first, second = self.documents[:half], self.documents[half:]
        return replace(self, documents=first), replace(self, documents=second, first=self.first + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Tokens of a block without its query and documents, and those around each document."""

    block: int
    document: int


class BlockWriter:
    """Writes the blocks of one model. Its methods may run in several threads at once."""

    def __init__(self, reader: TextReader, listwise: Listwise, added: int) -> None:
        """`added`: the number of special tokens around every text."""
        self._reader, self._listwise, self._added = reader, listwise, added
        self._markers = (listwise.query_marker, listwise.document_marker)  # in the order of the model's code

    def write(self, block: Block) -> str:
        """The text of a block."""
        texts = [self._opening(str(len(block.documents)), block.query, block.instruction)]
        for number, document in enumerate(block.documents):
            texts.append(_filled(self._listwise.document, number=str(number), document=document))
        return "".join([*texts, _filled(self._listwise.closing, query=block.query)])

    def without_markers(self, text: str) -> str:
        """A text without markers. What reads as one only then, which the model's code would leave, becomes a space."""
        for space in ("", " "):
            for marker in self._markers:
                text = text.replace(marker, space)
        return text

    def around(self, instruction: str) -> Around:
        """What stands in a block with this instruction, in tokens."""
        most = str(self._listwise.block_documents)
        block = self._opening(most, "", instruction) + _filled(self._listwise.closing, query="")
        document = _filled(self._listwise.document, number=most, document="")
        return Around(block=self._length(block) + self._added, document=self._length(document))

    def _length(self, text: str) -> int:
        return len(self._reader.read(text))

    def _opening(self, count: str, query: str, instruction: str) -> str:
        """What stands before the documents."""
        opening = _filled(self._listwise.opening, count=count, query=query)
        return opening + (_filled(self._listwise.instruction, instruction=instruction) if instruction else "")


def _filled(template: str, **values: str) -> str:
    """A template with a text at each place: all at once, so that nothing in a text of a caller is taken for one."""
    return PLACE.sub(lambda place: values[place[1]], template)


class ListwiseTokenizer:
    """Makes the blocks of one model. Its methods may run in several threads at once."""

    def __init__(
        self,
        reader: TextReader,
        framing: Tokenizer,
        card: ModelCard,
        listwise: Listwise,
        limits: TokenLimits,
        untrained: UntrainedTokens,
    ) -> None:
        """`framing` puts special tokens around an encoding."""
        self._reader, self._framing, self._limits, self._untrained = reader, framing, limits, untrained
        self._card, self._listwise = card, listwise
        self._writer = BlockWriter(reader, listwise, framing.num_special_tokens_to_add(is_pair=False))
        self._bare = self._writer.around("")

    def tokenize(self, texts: ListwiseTexts) -> Chunks[tuple[TokenizedBatch, Blocks]]:
        """Makes a sequence of each block, with a token range for each document's marker, then one for the query's.

        One that may be cut is cut to its limit, or to less where a block of this context cannot hold as much. Raises
        InputTooLong for a text over its limit that may not be cut, an instruction that leaves too few tokens to texts,
        and a document that does not fit into a block with its query.
        """
        instruction = self._instruction(texts.instruction)
        around = self._writer.around(instruction) if instruction else self._bare
        free_tokens = self._card.max_tokens - around.block - around.document
        queries = yield from self._fitted(
            texts.queries, texts.query_cut, InputType.QUERY, texts.query_entry, free_tokens // QUERY_SHARE
        )
        free_tokens -= 2 * max(query.tokens for query in queries) + JOIN_TOKENS
        documents = yield from self._fitted(
            texts.documents, texts.document_cut, InputType.DOCUMENT, texts.entry, free_tokens
        )
        yield self._least_tokens(texts, queries, documents)
        longest = self._limits.resolve(texts.document_cut, InputType.DOCUMENT)
        sequences, counts = _BlockSequences(), list[int]()
        for row, query in enumerate(queries):
            first, before = 0 if texts.matrix else row, len(sequences.lengths)
            chosen = documents if texts.matrix else documents[row : row + 1]
            for size in self._block_sizes(query, chosen, around, longest):
                block = Block(
                    query=query.text,
                    instruction=instruction,
                    documents=[document.text for document in documents[first : first + size]],
                    first=first,
                    entry=texts.entry,
                )
                self._add(sequences, block)
                first += size
                yield len(sequences.ids)
            counts.append(len(sequences.lengths) - before)
        blocks = Blocks(documents=tuple(sequences.documents), counts=tuple(counts))
        return sequences.batch([*queries, *documents]), blocks

    def _fitted(
        self, texts: Sequence[str], cut: Truncation, input_type: InputType, entry: str, free_tokens: int
    ) -> Chunks[list[_Fitted]]:
        """The texts within their limit. One that is cut is the text of the tokens that stay, as in the model's code.

        `free_tokens`: tokens that one which may be cut has at most.
        """
        limit, side = self._limits.resolve(cut, input_type), cut.side or self._card.truncation_side
        if cut.truncate:
            limit = min(limit, max(1, free_tokens))
        fitted, total = list[_Fitted](), 0
        for encodings in self._reader.encode_chunks(texts):
            for encoding in encodings:
                number, tokens = len(fitted), len(encoding)
                text, over = texts[number], tokens > limit
                if over:
                    if not cut.truncate:
                        raise self._limits.too_long(entry.format(number), tokens, limit, "truncate would cut it")
                    encoding = shortened(encoding, limit, side)
                    text = self._reader.text_of(encoding)
                fitted.append(_Fitted(text=self._writer.without_markers(text), tokens=len(encoding), truncated=over))
                total += len(encoding)
            yield total
        return fitted

    def _instruction(self, instruction: str) -> str:
        """An instruction without markers. Raises InputTooLong: one is never cut, as that would change what it asks."""
        if not instruction:
            return ""
        free_tokens = self._card.max_tokens - self._bare.block - self._bare.document
        limit = max(1, free_tokens // INSTRUCTION_SHARE)
        tokens = len(self._reader.read(instruction))
        if tokens > limit:
            remedy = "it may have half of a block's room for texts"
            raise self._limits.too_long("instruction", tokens, limit, remedy)
        return self._writer.without_markers(instruction)

    def _least_tokens(self, texts: ListwiseTexts, queries: Sequence[_Fitted], documents: Sequence[_Fitted]) -> int:
        """Tokens that all blocks have at least, told before the first is written: a request with far too many of them
        is refused at once."""
        of_documents = sum(document.tokens for document in documents) * (len(queries) if texts.matrix else 1)
        return of_documents + 2 * sum(query.tokens for query in queries)

    def _block_sizes(self, query: _Fitted, documents: Sequence[_Fitted], around: Around, longest: int) -> Iterator[int]:
        """How many documents each block has: as many as come before less than the `longest` one would be left.

        The model's code counts the texts alone; where what stands around them would not fit, a block ends earlier. A
        context that cannot hold two of the longest would make blocks of one document by that rule, and scores that
        compare nothing: there a block ends where the next document does not fit.
        """
        free_tokens = self._card.max_tokens - 2 * query.tokens
        reserve = longest if free_tokens >= 2 * longest else 0
        size, taken = 0, 0
        for document in documents:
            if size and taken + document.tokens + (size + 1) * around.document + around.block > free_tokens:
                yield size
                size, taken = 0, 0
            size, taken = size + 1, taken + document.tokens
            if size >= self._listwise.block_documents or free_tokens - taken <= reserve:
                yield size
                size, taken = 0, 0
        if size:
            yield size

    def _add(self, sequences: _BlockSequences, block: Block) -> None:
        """Adds a block, or two where its texts have more tokens together than apart, and too many.

        Raises InputTooLong, and InvalidInput for wrong markers.
        """
        listwise, limit, entry = self._listwise, self._card.max_tokens, block.name
        ids = self._framing.post_process(self._reader.read(self._writer.write(block))).ids
        if len(ids) > limit:
            if len(block.documents) > 1:
                for half in block.halves():
                    self._add(sequences, half)
                return
            why = f"has {len(ids)} tokens with its query, the limit is {limit}{self._limits.reason(limit)}"
            raise InputTooLong(f"{entry} {why}", field=entry)
        self._untrained.check(ids, entry.partition("[")[0], paired=True)
        tokens = np.array(ids)
        of_documents, of_query = (
            np.flatnonzero(tokens == marker) for marker in (listwise.document_marker_id, listwise.query_marker_id)
        )
        if (len(of_documents), len(of_query)) != (len(block.documents), 1):
            raise InvalidInput(f"a text from {entry} on, or the query, reads as a marker of the model", field=entry)
        sequences.ids.extend(ids)
        sequences.lengths.append(len(ids))
        sequences.documents.append(len(block.documents))
        sequences.markers += [*of_documents.tolist(), *of_query.tolist()]
