"""Texts without end: which of them are sent together. No I/O.

Both clients drive a `StreamedCall` alike: they add texts, send its batches, several at a time, and yield their results
in turn.
"""

from typing import Any

from selvage.calls.split_call import Pace
from selvage.errors import InvalidInput
from selvage.messages.embedding import Embed
from selvage.messages.inputs import ENTRY_LETTERS, ID_LETTERS, Inputs
from selvage.v1.embedding_pb2 import EmbedRequest

BATCH_LETTERS = 32 * 1024
"""Most letters of a batch. The batches that a service answers at the same time then fill a few steps of a worker."""
BATCHES_AHEAD = 32
"""Most batches that were begun and whose results were not yielded; until then no further text is read."""
BATCH_SECONDS = 86_400.0
"""Deadline of a batch, which may wait behind all others: a day. Without one the service would set a short one."""
END: Any = object()
"""Stands behind the last text."""


class StreamedCall:
    """One `embed_stream` in progress.

    `pace`: what its batches know of each other. `ended`: whether no text is to be added any more.
    """

    def __init__(self, source: Any, template: EmbedRequest, output: str, *, batch_texts: int) -> None:
        """`source`: the texts, which a client iterates over. `batch_texts`: most texts of a batch."""
        self.source, self.pace = source, Pace()
        self._template, self._output, self._batch_texts = template, output, batch_texts
        self.ended = False
        self._gathered: list[Any] = []
        self._letters = self._sent = 0

    @property
    def ahead(self) -> float:
        """How many batches may be under way at a time."""
        return min(BATCHES_AHEAD, self.pace.most)

    def add(self, text: Any) -> Embed | InvalidInput | None:
        """Adds the next text, its token ids, or END. Returns the batch that is full with it, or the rest at the end.

        A text that is neither, or that makes no batch with the texts before it, ends the stream: its error stands in
        place of its batch, so that it is raised after the results of those before.
        """
        try:
            batch = self._add(text)
        except InvalidInput as error:
            self.ended = True
            return error
        self.ended = text is END
        return batch

    def _add(self, text: Any) -> Embed | None:
        if text is END:
            return self._batch() if self._gathered else None
        if not hasattr(text, "__len__"):
            field = f"texts[{self._sent + len(self._gathered)}]"
            raise InvalidInput(f"{field} is of type {type(text).__name__}", field=field)
        self._gathered.append(text)
        self._letters += len(text) * (1 if isinstance(text, str) else ID_LETTERS) + ENTRY_LETTERS
        full = len(self._gathered) >= self._batch_texts or self._letters >= BATCH_LETTERS
        return self._batch() if full else None

    def _batch(self) -> Embed:
        """The texts that were gathered. Raises InvalidInput."""
        place, texts = self._sent, self._gathered
        self._sent, self._letters, self._gathered = place + len(texts), 0, []
        try:
            inputs = Inputs.of(texts)
        except InvalidInput as error:
            raise error.shifted({"texts": place}) from None
        return Embed(self._template, inputs, alone=self._output, seconds=BATCH_SECONDS, place=place)
