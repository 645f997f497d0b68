"""The text of a listwise reranker's block, as its card says; and what texts of callers are cleaned of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frontend_service.tokenizing.prefix import PrefixReader
from shared.card import PLACE, Listwise


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

    def __init__(self, reader: PrefixReader, listwise: Listwise, added: int) -> None:
        """`added`: the number of special tokens around every text."""
        self._reader, self._listwise, self._added = reader, listwise, added
        self._markers = (listwise.query_marker, listwise.document_marker)  # in the order of the model's code

    def write(self, block: Block) -> str:
        """The text of a block."""
        parts = [self._opening(str(len(block.documents)), block.query, block.instruction)]
        for number, document in enumerate(block.documents):
            parts.append(_filled(self._listwise.document, number=str(number), document=document))
        return "".join([*parts, _filled(self._listwise.closing, query=block.query)])

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
        return len(self._reader.read(text).encoding)

    def _opening(self, count: str, query: str, instruction: str) -> str:
        """What stands before the documents."""
        opening = _filled(self._listwise.opening, count=count, query=query)
        return opening + (_filled(self._listwise.instruction, instruction=instruction) if instruction else "")


def _filled(template: str, **values: str) -> str:
    """A template with a text at each place: all at once, so that nothing in a text of a caller is taken for one."""
    return PLACE.sub(lambda place: values[place[1]], template)
