"""Queries and documents to the blocks of a listwise reranker: texts that hold a query and many documents. In slices.

Which documents share a block, and how a block is written, is as the model's own code does it: jina-reranker-v3.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from tokenizers import Tokenizer

from frontend_service.domain.requests import DEFAULT_TRUNCATION, Truncation
from frontend_service.tokenizing.batch import TokenizedBatch
from frontend_service.tokenizing.fair_thread_pool import TimeSlices
from frontend_service.tokenizing.prefix import Need, PrefixReader
from frontend_service.tokenizing.token_limits import TokenLimits
from frontend_service.tokenizing.truncation import shortened
from frontend_service.tokenizing.untrained_tokens import UntrainedTokens
from shared.card import Listwise, ModelCard
from shared.errors import InputTooLong, InvalidInput
from shared.ragged import RaggedTokens, TokenRanges
from shared.vectors import InputType

PLACE = re.compile(r"\{(\w+)\}")
"""A place in a template. All are filled at once, so that nothing in a text of a caller is taken for one."""


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


class ListwiseTokenizer:
    """Makes the blocks of one model. Its methods may run in several threads at once."""

    def __init__(
        self,
        reader: PrefixReader,
        framing: Tokenizer,
        card: ModelCard,
        listwise: Listwise,
        limits: TokenLimits,
        untrained: UntrainedTokens,
    ) -> None:
        """`framing` puts special tokens around an encoding."""
        self._reader, self._framing, self._limits, self._untrained = reader, framing, limits, untrained
        self._card, self._listwise = card, listwise
        self._markers = (listwise.query_marker, listwise.document_marker)  # in the order of the model's code

    def tokenize(self, texts: ListwiseTexts) -> TimeSlices[tuple[TokenizedBatch, Blocks]]:
        """Makes a sequence of each block, with a token range for each document's marker, then one for the query's.

        Raises InputTooLong for a text over its limit that may not be cut, and for a document that does not fit into a
        block with its query.
        """
        queries = yield from self._fitted(texts.queries, texts.query_cut, InputType.QUERY, texts.query_entry)
        documents = yield from self._fitted(texts.documents, texts.document_cut, InputType.DOCUMENT, texts.entry)
        longest = self._limits.resolve(texts.document_cut, InputType.DOCUMENT)
        sequences, counts, instruction = _BlockSequences(), list[int](), self._without_markers(texts.instruction)
        around = self._tokens_around(instruction)
        for row, query in enumerate(queries):
            first, before = 0 if texts.matrix else row, len(sequences.lengths)
            chosen = documents if texts.matrix else documents[row : row + 1]
            remaining = iter(chosen)
            for size in self._block_sizes(query, chosen, around, longest):
                self._add(sequences, query, list(islice(remaining, size)), instruction, texts.entry.format(first))
                first += size
                yield len(sequences.ids)
            counts.append(len(sequences.lengths) - before)
        blocks = Blocks(documents=tuple(sequences.documents), counts=tuple(counts))
        return sequences.batch([*queries, *documents]), blocks

    def _fitted(
        self, texts: Iterable[str], cut: Truncation, input_type: InputType, entry: str
    ) -> TimeSlices[list[_Fitted]]:
        """The texts within their limit. One that is cut is the text of the tokens that stay, as in the model's code."""
        limit, side = self._limits.resolve(cut, input_type), cut.side or self._card.truncation_side
        fitted, total, remaining = list[_Fitted](), 0, iter(texts)
        for reads in self._reader.read_batches(texts, Need(tokens=limit + 1, cut_side=side)):
            for read, text in zip(reads, remaining, strict=False):  # the other order would lose a text of each slice
                encoding, over = read.encoding, len(read.encoding) > limit
                if over:
                    if not cut.truncate:
                        field_name = entry.format(len(fitted))
                        remedy = "truncate would cut it"
                        raise self._limits.too_long(field_name, len(encoding), limit, remedy, whole=read.whole)
                    encoding = shortened(encoding, limit, side)
                    text = self._reader.text_of(encoding)
                fitted.append(_Fitted(text=self._without_markers(text), tokens=len(encoding), truncated=over))
                total += len(encoding)
            yield total
        return fitted

    def _block_sizes(
        self, query: _Fitted, documents: Sequence[_Fitted], around: tuple[int, int], longest: int
    ) -> Iterator[int]:
        """How many documents each block has: as many as come before less than the `longest` one would be left.

        The model's code counts the texts alone; where what stands around them would not fit, a block ends earlier.
        """
        room, (around_all, around_document) = self._card.max_tokens - 2 * query.tokens, around
        size, taken = 0, 0
        for document in documents:
            if size and taken + document.tokens + (size + 1) * around_document + around_all > room:
                yield size
                size, taken = 0, 0
            size, taken = size + 1, taken + document.tokens
            if size >= self._listwise.block_documents or room - taken <= longest:
                yield size
                size, taken = 0, 0
        if size:
            yield size

    def _tokens_around(self, instruction: str) -> tuple[int, int]:
        """Tokens of a block without its query and documents, and those around each document."""
        most = str(self._listwise.block_documents)
        block = self._opening(most, "", instruction) + _filled(self._listwise.closing, query="")
        document = _filled(self._listwise.document, number=most, document="")
        return len(self._reader.read(block).encoding), len(self._reader.read(document).encoding)

    def _add(
        self, sequences: _BlockSequences, query: _Fitted, documents: Sequence[_Fitted], instruction: str, entry: str
    ) -> None:
        """Adds a block. `entry`: its first document. Raises InputTooLong, and InvalidInput for wrong markers."""
        listwise, count = self._listwise, str(len(documents))
        block = [
            self._opening(count, query.text, instruction),
            *(
                _filled(listwise.document, number=str(number), document=document.text)
                for number, document in enumerate(documents)
            ),
            _filled(listwise.closing, query=query.text),
        ]
        ids = self._framing.post_process(self._reader.read("".join(block)).encoding).ids
        limit = self._card.max_tokens
        if len(ids) > limit:
            what = entry if len(documents) == 1 else f"a block of {count} documents from {entry} on"
            why = f"has {len(ids)} tokens with its query, the limit is {limit}{self._limits.reason(limit)}"
            raise InputTooLong(f"{what} {why}", field=entry)
        self._untrained.check(ids, entry.partition("[")[0])
        tokens = np.array(ids)
        of_documents, of_query = (
            np.flatnonzero(tokens == marker) for marker in (listwise.document_marker_id, listwise.query_marker_id)
        )
        if (len(of_documents), len(of_query)) != (len(documents), 1):
            raise InvalidInput(f"a text from {entry} on, or the query, reads as a marker of the model", field=entry)
        sequences.ids.extend(ids)
        sequences.lengths.append(len(ids))
        sequences.documents.append(len(documents))
        sequences.markers += [*of_documents.tolist(), *of_query.tolist()]

    def _opening(self, count: str, query: str, instruction: str) -> str:
        """What stands before the documents."""
        opening = _filled(self._listwise.opening, count=count, query=query)
        return opening + (_filled(self._listwise.instruction, instruction=instruction) if instruction else "")

    def _without_markers(self, text: str) -> str:
        """A text without markers. What reads as one only then, which the model's code would leave, becomes a space."""
        for space in ("", " "):
            for marker in self._markers:
                text = text.replace(marker, space)
        return text


def _filled(template: str, **values: str) -> str:
    """A template with a text at each place."""
    return PLACE.sub(lambda place: values[place[1]], template)
