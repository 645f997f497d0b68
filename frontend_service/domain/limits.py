"""Limits of what one frontend accepts, and the errors that say so."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frontend_service.domain.requests import Truncation
from shared.errors import LimitExceeded, ResultTooLarge

ENVELOPE_BYTES = 64 * 1024
"""Bytes that a reply holds beside its vectors."""
MATCH_BYTES = 8
"""A winner and its similarity, between the services."""
TEXT_LETTERS = 16
"""A text takes as long to tokenise as if it had so many letters more."""

FEWER_WEIGHTS = "set sparse_top_k, or ask for fewer texts"
"""The remedy where sparse vectors make a reply too large: how many weights one has cannot be foreseen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Counts a request; see `selvage.v1.Limits`.

    `auto_truncate`: texts over the model's limit are cut where a request does not say whether to cut them.
    """

    texts: int = 4096
    documents: int = 16_384
    text_bytes: int = 1024 * 1024
    message_bytes: int = 64 * 1024 * 1024
    request_tokens: int = 8_388_608
    request_rows: int = 4_194_304
    scores: int = 16_000_000
    similarities: int = 2_000_000_000
    vector_elements: int = 67_108_864
    pooled_tokens: int = 2048
    auto_truncate: bool = False

    def settled(self, cut: Truncation) -> Truncation:
        """A cut as it is where the request says whether to cut; else with what this frontend does by itself."""
        return cut if cut.truncate is not None else replace(cut, truncate=self.auto_truncate)

    def check_texts(
        self, texts: Sequence[str], entry: str, limit: int, prompt: str = "", prompt_field: str = "prompt"
    ) -> int:
        """Checks how many texts there are, how large each is with its prompt, and all. Returns the letters to tokenise.

        Each text counts for TEXT_LETTERS more. `entry` is what errors call one of them: `texts[{}]`, or `query`.
        """
        self.check_count(len(texts), entry.partition("[")[0], limit)
        common = len(prompt.encode())
        if common > self.text_bytes:
            raise LimitExceeded(
                f"{prompt_field} has {common} bytes, a text has at most {self.text_bytes}", field=prompt_field
            )
        for index, text in enumerate(texts):
            if len(text) * 4 + common > self.text_bytes and len(text.encode()) + common > self.text_bytes:
                field, size = entry.format(index), len(text.encode()) + common
                raise LimitExceeded(f"{field} has {size} bytes, the limit is {self.text_bytes}", field=field)
        letters = sum(map(len, texts)) + len(prompt) * len(texts)
        if letters > self.message_bytes:
            raise LimitExceeded(f"texts and prompts have {letters} letters together, the limit is {self.message_bytes}")
        return letters + TEXT_LETTERS * len(texts)

    def check_count(self, count: int, field: str, limit: int) -> None:
        """Checks how many entries a field has."""
        if count > limit:
            raise LimitExceeded(f"{field} has {count} entries, the limit is {limit}", field=field)

    def check_tokens(self, tokens: int) -> None:
        """Tokens of a whole request."""
        if tokens > self.request_tokens:
            raise LimitExceeded(f"the request has {tokens} tokens, the limit is {self.request_tokens}")

    def check_given(self, tokenized: Sequence[Sequence[int]], field: str) -> None:
        """Ids of a caller: of one text no more than a text has bytes, of all no more than a request has tokens."""
        total = 0
        for index, ids in enumerate(tokenized):
            self.check_count(len(ids), f"{field}[{index}]", self.text_bytes)
            total += len(ids)
        if total > self.request_tokens:
            raise LimitExceeded(f"{field} has {total} ids together, the limit is {self.request_tokens}", field=field)

    def check_vectors(self, field: str, rows: int, dimensions: int) -> None:
        """Rows and numbers of one side of a MaxSim."""
        self.check_count(rows, f"{field}.data", self.request_rows)
        if rows * dimensions > self.vector_elements:
            raise LimitExceeded(
                f"{field} holds {rows} x {dimensions} numbers, the limit is {self.vector_elements}",
                field=f"{field}.data",
            )

    def check_pooled(self, lengths: Sequence[int], dimensions: int, entry: str) -> None:
        """Token rows that are to be pooled: of each text, as many as tokens, and of all.

        `entry` is what errors call one of the texts: `texts[{}]`.
        """
        for index, length in enumerate(lengths):
            if length > self.pooled_tokens:
                field = entry.format(index)
                raise LimitExceeded(
                    f"{field} has {length} tokens, the rows of {self.pooled_tokens} at most are pooled", field=field
                )
        rows, field = sum(lengths), entry.partition("[")[0]
        if rows * dimensions > self.vector_elements:
            raise LimitExceeded(
                f"{field} have {rows} x {dimensions} numbers before pooling, the limit is {self.vector_elements}",
                field=field,
            )

    def check_similarities(self, count: int) -> None:
        """Products of a query row with a document row in one MaxSim."""
        if count > self.similarities:
            raise LimitExceeded(f"{count} products of rows are asked for, the limit is {self.similarities}")

    def check_matches(self, count: int) -> None:
        """Winners of an explanation: the worker holds them all, whatever the reply shows of them."""
        if count * MATCH_BYTES > self.message_bytes:
            raise LimitExceeded(
                f"explain needs {count} winners, the limit is {self.message_bytes // MATCH_BYTES}: "
                "explain fewer documents",
                field="explain",
            )

    def check_scores(self, rows: int, columns: int) -> None:
        """Scores of a whole request."""
        if rows * columns > self.scores:
            raise LimitExceeded(f"{rows} x {columns} scores are asked for, the limit is {self.scores}")

    def check_reply(self, payload: int, remedy: str) -> None:
        """Bytes of a reply, before anything is computed."""
        if payload + ENVELOPE_BYTES > self.message_bytes:
            raise ResultTooLarge(
                f"the reply would have {payload} bytes, a message has at most {self.message_bytes}; {remedy}"
            )
