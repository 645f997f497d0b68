"""Limits of what one frontend accepts in a request, and the checks that hold requests to them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frontend_service.domain.requests import Truncation
from shared.errors import LimitExceeded, ResultTooLarge
from shared.vectors import MOST_DIMENSIONS, MOST_ELEMENTS, MOST_SIMILARITIES

ENVELOPE_BYTES = 64 * 1024
"""Most bytes that a reply holds beside its vectors."""
LINK_MATCH_BYTES = 8
"""Bytes of a winner and its similarity in a job's result, as the link carries it."""
TEXT_LETTERS = 16
"""Letters that each text counts for beyond its own: the fixed cost of tokenising a text."""

FEWER_WEIGHTS = "set sparse_top_k, or ask for fewer texts"
"""The advice in an error where sparse vectors make a reply too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one request may hold. All but `auto_truncate` are limits.

    `texts`: of an Embed, Tokenize, Classify or ClassifyTokens, and queries; `documents`: of a Rerank, Score or MaxSim.
    `text_bytes`: UTF-8 bytes of a text with its prompt; `message_bytes`: of all texts, and of a reply.
    `request_tokens`: of all texts. `request_rows`, `vector_elements` (rows x dimensions): of either side of a MaxSim;
    the latter also of the rows that an Embed pools. `scores`: of a Score or MaxSim. `similarities`: products of two
    rows in a MaxSim. `pooled_tokens`: of a text whose rows are pooled. `spans`: of all texts of an Embed.

    `auto_truncate`: whether texts over the model's limit are cut where the request does not say.

    All checks raise LimitExceeded, naming the field where there is one; `check_reply` raises ResultTooLarge.
    """

    texts: int = 4096
    documents: int = 16_384
    text_bytes: int = 256 * 1024
    message_bytes: int = 64 * 1024 * 1024
    request_tokens: int = 8_388_608
    request_rows: int = 4_194_304
    scores: int = 16_000_000
    similarities: int = MOST_SIMILARITIES
    vector_elements: int = MOST_ELEMENTS
    pooled_tokens: int = 2048
    spans: int = 65_536
    auto_truncate: bool = False

    def with_default(self, cut: Truncation) -> Truncation:
        """The same truncation, with `auto_truncate` where the request does not say whether to cut."""
        return replace(
            cut,
            truncate=self.auto_truncate if cut.truncate is None else cut.truncate,
            text_bytes=self.text_bytes,
        )

    def check_texts(
        self,
        texts: Sequence[str],
        entry: str,
        limit: int,
        prompt: str = "",
        prompt_field: str = "prompt",
        *,
        cut: bool = False,
    ) -> int:
        """Checks the number of texts, the size of each with its prompt, and that of all together.

        Returns the cost of tokenising them in letters, TEXT_LETTERS more for each text. `entry` is what errors call one
        of them: `texts[{}]`, or `query`. `cut`: each may have any size, since only a part of it is read.
        """
        self.check_count(len(texts), entry.partition("[")[0], limit)
        common = len(prompt.encode())
        if common > self.text_bytes:
            raise LimitExceeded(
                f"{prompt_field} has {common} bytes, a text has at most {self.text_bytes}", field=prompt_field
            )
        for index, text in enumerate(() if cut else texts):
            if len(text) * 4 + common > self.text_bytes and (size := utf8_bytes(text) + common) > self.text_bytes:
                field = entry.format(index)
                raise LimitExceeded(
                    f"{field} has {size} bytes, the limit is {self.text_bytes} (--max-text-bytes)", field=field
                )
        letters = sum(map(len, texts)) + len(prompt) * len(texts)
        if letters > self.message_bytes:
            raise LimitExceeded(f"texts and prompts have {letters} letters together, the limit is {self.message_bytes}")
        return letters + TEXT_LETTERS * len(texts)

    def check_count(self, count: int, field: str, limit: int) -> None:
        """Checks that the field named `field` has at most `limit` entries."""
        if count > limit:
            raise LimitExceeded(f"{field} has {count} entries, the limit is {limit}", field=field)

    def check_tokens(self, tokens: int) -> None:
        """Checks the tokens of a whole request."""
        if tokens > self.request_tokens:
            raise LimitExceeded(f"the request has {tokens} tokens, the limit is {self.request_tokens}")

    def check_ids(self, tokenized: Sequence[Sequence[int]], field: str) -> None:
        """Checks lists of token ids: at most `text_bytes` ids in one, at most `request_tokens` in all."""
        total = 0
        for index, ids in enumerate(tokenized):
            self.check_count(len(ids), f"{field}[{index}]", self.text_bytes)
            total += len(ids)
        if total > self.request_tokens:
            raise LimitExceeded(f"{field} has {total} ids together, the limit is {self.request_tokens}", field=field)

    def check_vectors(self, field: str, rows: int, dimensions: int) -> None:
        """Checks the rows and the numbers of one side of a MaxSim."""
        self.check_count(rows, f"{field}.data", self.request_rows)
        if dimensions > MOST_DIMENSIONS:
            why = f"{field} has rows of {dimensions} dimensions, the limit is {MOST_DIMENSIONS}"
            raise LimitExceeded(why, field=f"{field}.dimensions")
        if rows * dimensions > self.vector_elements:
            raise LimitExceeded(
                f"{field} holds {rows} x {dimensions} numbers, the limit is {self.vector_elements}",
                field=f"{field}.data",
            )

    def check_pooled(self, lengths: Sequence[int], dimensions: int, entry: str) -> None:
        """Checks the token rows to be pooled: those of each text, which has `lengths` tokens, and those of all.

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
        """Checks the products of a query row with a document row in one MaxSim."""
        if count > self.similarities:
            raise LimitExceeded(f"{count} products of rows are asked for, the limit is {self.similarities}")

    def check_matches(self, count: int) -> None:
        """Checks the winners of an explanation: the worker holds all of them, even those that no reply shows."""
        if count * LINK_MATCH_BYTES > self.message_bytes:
            raise LimitExceeded(
                f"explain needs {count} winners, the limit is {self.message_bytes // LINK_MATCH_BYTES}: "
                "explain fewer documents",
                field="explain",
            )

    def check_scores(self, rows: int, columns: int) -> None:
        """Checks the scores of a whole request."""
        if rows * columns > self.scores:
            raise LimitExceeded(f"{rows} x {columns} scores are asked for, the limit is {self.scores}")

    def check_reply(self, payload: int, remedy: str, field: str = "") -> None:
        """Checks the bytes of a reply, mostly before it is computed. `remedy`: the advice in the error. `field`: the
        text that these bytes are for, where each text is checked by itself."""
        if payload + ENVELOPE_BYTES > self.message_bytes:
            reply, room = f"the reply for {field} alone" if field else "the reply", self.message_bytes - ENVELOPE_BYTES
            why = f"{reply} would have {payload} bytes, a message of {self.message_bytes} has room for {room}"
            raise ResultTooLarge(f"{why}; {remedy}", field=field)


def utf8_bytes(text: str) -> int:
    """Bytes of a text in UTF-8. Only a text with other letters than ASCII is encoded for it."""
    return len(text) if text.isascii() else len(text.encode())
