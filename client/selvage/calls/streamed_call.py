"""Texts without end, sent through EmbedStream: what to send, what has come, which results are ready. No I/O.

Both clients drive a `StreamedCall` alike: they add texts while it wants some, send its requests, record replies and
the end of a stream, and yield the results that are ready.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from selvage.calls.split_call import RetryPolicy
from selvage.errors import Internal, InvalidInput, SelvageError, from_stream
from selvage.messages.embedding import Template, results_by_text
from selvage.messages.inputs import ENTRY_LETTERS, ID_LETTERS, Inputs
from selvage.v1.embedding_pb2 import EmbedStreamRequest, EmbedStreamResponse

BATCH_LETTERS = 32 * 1024
"""Most letters of a batch. The batches that a service answers at the same time then fill a few steps of a worker."""
BATCHES_AHEAD = 32
"""Most batches that were begun and whose results were not yielded; until then no further text is read."""
END_SECONDS = 5.0
"""Longest wait for the end of a stream that is closed."""


@dataclass(slots=True)
class _StreamBatch:
    """A batch that is sent as one request.

    `start`: the place of its first text among all texts. `failures`: how often the service refused it. `results`: those
    that have come, by the place in the batch of the first text of their reply.
    """

    start: int
    inputs: Inputs
    failures: int = 0
    answered: bool = False
    results: dict[int, list[Any]] = field(default_factory=dict)

    def ordered_results(self) -> Iterator[Any]:
        """Results in the order of the texts."""
        for place in sorted(self.results):
            yield from self.results[place]


class StreamedCall:
    """One `embed_stream` in progress, over one EmbedStream after the other where they end early."""

    def __init__(
        self,
        source: Any,
        template: Template,
        output: str,
        retries: RetryPolicy,
        *,
        batch_texts: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source`: the texts, which a client iterates over. `batch_texts`: most texts of a batch."""
        self.source = source
        self._template, self._output, self._retries = template, output, retries
        self._batch_texts, self._clock = batch_texts, clock
        self._gathered: list[Any] = []
        self._letters = self._texts = self._next_id = self._stream_ends = 0
        self._batches: dict[int, _StreamBatch] = {}
        self._unsent: deque[int] = deque()
        self._ended = False
        self._resume = clock()

    @property
    def wants_text(self) -> bool:
        """Whether another text is to be added."""
        return not self._ended and len(self._batches) < BATCHES_AHEAD

    @property
    def only_reads(self) -> bool:
        """Whether another text is to be added before there is something to send or to wait for."""
        return self.wants_text and (not self._unsent or self.wait_seconds() is not None)

    @property
    def done(self) -> bool:
        """Whether every text's result has been yielded."""
        return self._ended and not self._batches

    def add_text(self, text: str | Sequence[int]) -> None:
        """Adds the next text, or its token ids. Raises InvalidInput where it is neither."""
        if not hasattr(text, "__len__"):
            place = self._texts + len(self._gathered)
            raise InvalidInput(f"texts[{place}] is of type {type(text).__name__}", field=f"texts[{place}]")
        self._gathered.append(text)
        self._letters += len(text) * (1 if isinstance(text, str) else ID_LETTERS) + ENTRY_LETTERS
        if len(self._gathered) >= self._batch_texts or self._letters >= BATCH_LETTERS:
            self._close_batch()

    def end_texts(self) -> None:
        """Says that no further text comes."""
        self._close_batch()
        self._ended = True

    def next_request(self) -> EmbedStreamRequest | None:
        """The request to send now through the open stream; None where there is none."""
        if not self._unsent or self.wait_seconds() is not None:
            return None
        batch_id = self._unsent.popleft()
        inputs = self._batches[batch_id].inputs
        return EmbedStreamRequest(id=batch_id, request=self._template.request(inputs, slice(0, len(inputs))))

    def wait_seconds(self) -> float | None:
        """Seconds until the requests that wait after a refusal may be sent; None where none waits."""
        wait = self._resume - self._clock()
        return wait if wait > 0 and self._unsent else None

    def listen_seconds(self) -> float | None:
        """How long to listen for replies before asking for the next request.

        0 while texts are wanted, or when all is done; None: until something comes.
        """
        if self.wants_text or self.done:
            return 0.0
        return max(0.0, self._resume - self._clock()) if self._unsent else None

    def record_reply(self, reply: EmbedStreamResponse, request_id: str) -> None:
        """Stores a reply, or a part of one.

        Raises the error of a batch that another try would not help, Internal where it is no reply to what was sent.
        """
        batch = self._batches.get(reply.id)
        if batch is None or batch.answered:
            raise Internal(f"the stream has a reply {reply.id}, which nothing waits for", request_id=request_id)
        if reply.WhichOneof("outcome") == "error":
            batch.results.clear()
            batch.failures += 1
            error = from_stream(reply.error, request_id).shifted({"texts": batch.start, "tokenized": batch.start})
            self._wait_after(error, batch.failures)
            self._unsent.appendleft(reply.id)
            return
        batch.results[reply.start] = results_by_text(reply.response, self._output)
        if not reply.more:
            count = sum(map(len, batch.results.values()))
            if count != len(batch.inputs):
                fault = f"the stream has {count} results for {len(batch.inputs)} texts"
                raise Internal(fault, request_id=request_id)
            batch.answered, self._stream_ends = True, 0

    def record_stream_end(self, error: SelvageError) -> None:
        """Plans to send every batch without a whole reply through another stream. Raises where that will not help."""
        unanswered = [batch_id for batch_id, batch in self._batches.items() if not batch.answered]
        if not unanswered:
            return
        self._stream_ends += 1
        for batch_id in unanswered:
            self._batches[batch_id].results.clear()
        self._unsent = deque(unanswered)
        self._wait_after(error, self._stream_ends)

    def ready_results(self) -> Iterator[Any]:
        """Results that have come and were not yielded yet, in the order of the texts."""
        while self._batches:
            first = next(iter(self._batches))
            if not self._batches[first].answered:
                return
            yield from self._batches.pop(first).ordered_results()

    def _wait_after(self, error: SelvageError, failures: int) -> None:
        """Sends nothing until an error may have passed. Raises the error where it will not."""
        wait = self._retries.wait(error, failures)
        if wait is None:
            raise error
        self._resume = max(self._resume, self._clock() + wait)

    def _close_batch(self) -> None:
        """Makes a batch of the texts that were gathered. Raises InvalidInput."""
        if not self._gathered:
            return
        try:
            inputs = Inputs.of(self._gathered)
        except InvalidInput as error:
            raise error.shifted({"texts": self._texts}) from None
        self._batches[self._next_id] = _StreamBatch(start=self._texts, inputs=inputs)
        self._unsent.append(self._next_id)
        self._texts += len(self._gathered)
        self._next_id, self._letters, self._gathered = self._next_id + 1, 0, []
