"""Limits of what one frontend accepts, and every check of a size: of a request, its tokens, its result and its reply.

All sizes are known before a job is sent, but for sparse vectors without `sparse_top_k`. Knows no API and no worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from frontend_service.domain.requests import EmbedRequest, MaxSimRequest, ScoreRequest, Truncation
from shared.card import ModelCard
from shared.errors import LimitExceeded, ResultTooLarge
from shared.jobs import MESSAGE_SEQUENCES, ChunkKind, Classify, Encode, MaxSim, RaggedTokens, Score, TokenRanges, Work
from shared.vectors import (
    MOST_DIMENSIONS,
    MOST_ELEMENTS,
    MOST_POOLED,
    MOST_SIMILARITIES,
    DataType,
    Layout,
    MultiVectors,
    OutputKind,
)

ENVELOPE_BYTES = 64 * 1024
"""Most bytes that a reply holds beside its vectors."""
LINK_MATCH_BYTES = 8
"""Bytes of a winner and its similarity in a job's result, as the link carries it."""
REPLY_MATCH_BYTES = 9
"""Most bytes of a winner and its similarity in a MaxSim reply."""
TOKEN_MATCH_BYTES = 32
"""Bytes of a winner with both tokens as texts; most have a few letters."""
NUMBER_BYTES = 4
"""Bytes of a score, a logit, an id, a weight or a winner."""
SPARSE_ENTRY_BYTES = 8
"""Bytes of a sparse vector's entry: a vocabulary id and its weight."""
EMBEDDED_TEXT_BYTES = 8
"""Bytes of a text in an Embed's reply beside its vectors: its number of tokens and of rows, and whether it was cut."""
TOKEN_ID_BYTES = 5
"""Most bytes of a token id in an Embed's reply, where it is a varint."""
CLASSIFIED_TOKEN_BYTES = 12
"""Bytes of a classified token in a reply beside its scores: id and offsets."""
SHOWN_TOKEN_BYTES = 48
"""Bytes of a token in a Tokenize reply: id, text, offsets; long tokens are rare."""
DOCUMENT_FIELD_BYTES = 32
"""Most bytes that a message adds to a document's text."""
TEXT_LETTERS = 16
"""Letters that each text counts for beyond its own: the fixed cost of tokenising a text."""

FEWER_TEXTS = "ask for fewer texts"
FEWER_WEIGHTS = "set sparse_top_k, or ask for fewer texts"
"""The advice in an error where sparse vectors make a reply too large."""
SMALLER_REPLY = "ask for fewer texts, a smaller data_type (FLOAT16, INT8) or fewer dimensions, or use EmbedStream"
SMALLER_ROWS = "ask for a smaller data_type (FLOAT16, INT8) or fewer dimensions, or send fewer tokens"
"""The advice where the token rows of one text alone are too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one request may hold. All but `auto_truncate` are limits.

    `texts`: of an Embed, Tokenize, Classify or ClassifyTokens, and queries; `documents`: of a Rerank, Score or MaxSim.
    `text_bytes`: UTF-8 bytes of a text with its prompt; `message_bytes`: of all texts, and of a reply.
    `request_tokens`: of all texts. `request_rows`, `vector_elements` (rows x dimensions): of either side of a MaxSim.
    `scores`: of a Score or MaxSim. `similarities`: products of two
    rows in a MaxSim. `pooled_tokens`: of a document whose rows are pooled. `spans`: of all texts of an Embed.

    `auto_truncate`: whether texts over the model's limit are cut where the request does not say.

    All checks raise LimitExceeded, naming the field where there is one; those of replies raise ResultTooLarge.
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
    pooled_tokens: int = MOST_POOLED
    spans: int = 65_536
    auto_truncate: bool = False

    def with_default(self, cut: Truncation) -> Truncation:
        """The same truncation, with `auto_truncate` where the request does not say whether to cut."""
        return replace(cut, truncate=True) if self.auto_truncate and cut.truncate is None else cut

    def check_texts(
        self, texts: Sequence[str], entry: str, limit: int, prompt: str = "", prompt_field: str = "prompt"
    ) -> int:
        """Checks the number of texts, the size of each with its prompt, and that of all together.

        Returns the cost of tokenising them in letters, TEXT_LETTERS more for each text. `entry` is what errors call one
        of them: `texts[{}]`, or `query`.
        """
        self.check_count(len(texts), entry.partition("[")[0], limit)
        common = utf8_bytes(prompt) if prompt else 0
        if common > self.text_bytes:
            raise LimitExceeded(
                f"{prompt_field} has {common} bytes, a text has at most {self.text_bytes}", field=prompt_field
            )
        letters = 0
        for index, text in enumerate(texts):
            length = len(text)
            letters += length
            if length * 4 + common > self.text_bytes and (size := utf8_bytes(text) + common) > self.text_bytes:
                field = entry.format(index)
                raise LimitExceeded(
                    f"{field} has {size} bytes, the limit is {self.text_bytes} (--max-text-bytes)", field=field
                )
        letters += len(prompt) * len(texts)
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

    def check_vectors(self, field: str, vectors: MultiVectors) -> None:
        """Checks the texts, the rows and the numbers of one side of a MaxSim."""
        rows, dimensions = vectors.rows, vectors.dimensions
        self.check_count(len(vectors.lengths), f"{field}.lengths", self.documents)
        self.check_count(rows, f"{field}.data", self.request_rows)
        if dimensions > MOST_DIMENSIONS:
            why = f"{field} has rows of {dimensions} dimensions, the limit is {MOST_DIMENSIONS}"
            raise LimitExceeded(why, field=f"{field}.dimensions")
        if rows * dimensions > self.vector_elements:
            raise LimitExceeded(
                f"{field} holds {rows} x {dimensions} numbers, the limit is {self.vector_elements}",
                field=f"{field}.data",
            )

    def check_embedding(
        self, request: EmbedRequest, work: Encode, card: ModelCard, lengths: Sequence[int], entry: str
    ) -> None:
        """Checks the rows that an Embed pools, and its reply, by the tokens of each text.

        `entry` is what errors call one of the texts: `texts[{}]`. A text whose token rows alone are too large is named.
        """
        if work.pooling:
            self.check_pooled(lengths, entry)
        if OutputKind.MULTI_VECTOR in work.outputs:
            longest = max(range(len(lengths)), key=lengths.__getitem__)
            alone = _embedding_bytes(request, work, card, lengths[longest : longest + 1], dense_rows=1)
            self.check_reply(alone, SMALLER_ROWS, entry.format(longest))
        self.check_reply(_embedding_bytes(request, work, card, lengths, dense_rows=request.dense_rows), SMALLER_REPLY)

    def check_pooled(self, lengths: Sequence[int], entry: str) -> None:
        """Checks documents of so many tokens whose rows are to be pooled. `entry` is what errors call one of them."""
        for index, length in enumerate(lengths):
            if length > self.pooled_tokens:
                field, most = entry.format(index), self.pooled_tokens
                why = f"{field} has {length} tokens, the rows of {most} at most are pooled (pool_factor above 1)"
                raise LimitExceeded(why, field=field)

    def check_pairs(self, count: int) -> None:
        """Checks the pairs that a cross-encoder reads: each is a sequence of one job."""
        if count > MESSAGE_SEQUENCES:
            raise LimitExceeded(f"{count} different pairs are asked for, the limit is {MESSAGE_SEQUENCES}")

    def check_scores(self, rows: int, columns: int) -> None:
        """Checks the scores of a whole request."""
        if rows * columns > self.scores:
            raise LimitExceeded(f"{rows} x {columns} scores are asked for, the limit is {self.scores}")

    def check_marker_rows(self, card: ModelCard, scores: int, blocks: int) -> None:
        """Checks the rows that a listwise reranker's scores are made of: one for each score, and one for each block.

        A job with too many can never succeed: it must not wait for room.
        """
        size = DataType.FLOAT32.row_bytes(card.dense_width)
        why = f"a listwise reranker's scores are made of {size} bytes each"
        self.check_reply((scores + blocks) * size, f"{why}: score fewer documents or queries in one request")

    def check_explained(self, request: ScoreRequest, query_tokens: int, shown: int, text_bytes: int) -> None:
        """Checks the winners of a Rerank, and a reply that explains `shown` documents beside texts of `text_bytes`."""
        _, columns = request.layout.shape(len(request.queries), len(request.documents))
        self._check_matches(columns * query_tokens)
        size = text_bytes + shown * query_tokens * TOKEN_MATCH_BYTES
        self.check_reply(size, "set top_n, or leave explain unset")

    def check_max_sim(self, request: MaxSimRequest, query_rows: Sequence[int]) -> None:
        """Checks the products of rows, the winners and the reply of a MaxSim whose queries have so many rows each."""
        similarities = request.similarities(query_rows)
        if similarities > self.similarities:
            raise LimitExceeded(f"{similarities} products of rows are asked for, the limit is {self.similarities}")
        matches = request.matches(query_rows) if request.explain else 0
        self._check_matches(matches)
        rows, columns = request.layout.shape(request.query_count, len(request.documents.lengths))
        remedy = "ask for fewer scores" + (", or leave explain unset" if request.explain else "")
        self.check_reply(NUMBER_BYTES * rows * columns + REPLY_MATCH_BYTES * matches, remedy)

    def _check_matches(self, count: int) -> None:
        """Checks the winners of an explanation: the worker holds all of them, even those that no reply shows."""
        if count * LINK_MATCH_BYTES > self.message_bytes:
            raise LimitExceeded(
                f"explain needs {count} winners, the limit is {self.message_bytes // LINK_MATCH_BYTES}: "
                "explain fewer documents",
                field="explain",
            )

    def check_reply(self, payload: int, remedy: str, field: str = "") -> None:
        """Checks the bytes of a reply, mostly before it is computed. `remedy`: the advice in the error. `field`: the
        text that these bytes are for, where each text is checked by itself."""
        if payload + ENVELOPE_BYTES > self.message_bytes:
            reply, most = f"the reply for {field} alone" if field else "the reply", self.message_bytes - ENVELOPE_BYTES
            why = f"{reply} would have {payload} bytes, a message of {self.message_bytes} has room for {most}"
            raise ResultTooLarge(f"{why}; {remedy}", field=field)


def utf8_bytes(text: str) -> int:
    """Bytes of a text in UTF-8. Only a text with other letters than ASCII is encoded for it."""
    return len(text) if text.isascii() else len(text.encode())


def largest_bytes(texts: Sequence[str], count: int) -> int:
    """UTF-8 bytes of the `count` largest documents, with what a message adds to each."""
    sizes = sorted(map(utf8_bytes, texts), reverse=True)
    return sum(sizes[:count]) + DOCUMENT_FIELD_BYTES * count


def _embedding_bytes(
    request: EmbedRequest, work: Encode, card: ModelCard, lengths: Sequence[int], *, dense_rows: int
) -> int:
    """Bytes of the vectors in an Embed's reply, before they are computed: of texts of so many tokens each.

    Sparse vectors count as far as `sparse_top_k` tells their length, otherwise as nothing.
    """
    kind, payload = request.data_type, EMBEDDED_TEXT_BYTES * len(lengths)
    if OutputKind.DENSE in work.outputs:
        payload += dense_rows * (kind.row_bytes(work.dimensions or card.dimensions) + kind.scale_bytes)
    if OutputKind.MULTI_VECTOR in work.outputs:
        rows = _token_rows(work, lengths)
        row_bytes = kind.row_bytes(work.dimensions or card.multi_vector_dimensions) + kind.scale_bytes
        payload += rows * (row_bytes + TOKEN_ID_BYTES * work.token_ids)
    if OutputKind.SPARSE in work.outputs:
        payload += _sparse_bytes(work, len(lengths), card)
    return payload


def _token_rows(work: Encode, lengths: Sequence[int]) -> int:
    """Most token rows of texts with so many tokens each."""
    return sum(map(work.pooling.rows_left, lengths)) if work.pooling else sum(lengths)


class KindBytes(NamedTuple):
    """Bytes of one kind in a result: `fixed` of them, and more for each token row or each entry of a sparse vector."""

    fixed: int = 0
    row: int = 0
    entry: int = 0

    def size(self, rows: int, entries: int) -> int:
        """All bytes of this kind, with so many token rows and entries."""
        return self.fixed + self.row * rows + self.entry * entries


class ExpectedReply(NamedTuple):
    """What the result of one job must be.

    `kinds`: the bytes of each kind of chunk. `sequences`: those of the job. `rows`, `entries`: most token rows, and
    most entries of sparse vectors, of all sequences; 0: none are told. `limits_entries`: whether the request limits
    the entries, by `sparse_top_k`. `dense`, `tokens`: the dimensions of dense rows and of token rows, 0 for none.
    `unit`: whether all rows are of unit length.
    """

    kinds: Mapping[int, KindBytes]
    sequences: int = 0
    rows: int = 0
    entries: int = 0
    limits_entries: bool = False
    dense: int = 0
    tokens: int = 0
    data_type: DataType = DataType.FLOAT32
    unit: bool = False

    @property
    def known_bytes(self) -> int:
        """Bytes of the result, without its envelope.

        Sparse vectors that the request does not limit count as nothing: nobody knows how long they will be.
        """
        entries = self.entries if self.limits_entries else 0
        return sum([kind.size(self.rows, entries) for kind in self.kinds.values()])


def expected_reply(
    work: Work, tokens: RaggedTokens, card: ModelCard, ranges: TokenRanges | None = None
) -> ExpectedReply:
    """What a worker with this model should reply to a job. `ranges`: those of the job, if it has any."""
    match work:
        case Encode():
            return _expected_vectors(work, tokens, card, len(tokens) if ranges is None else len(ranges))
        case Classify():
            logits = NUMBER_BYTES * len(card.labels)
            if not work.tokens:
                return ExpectedReply(kinds={ChunkKind.SCORES: KindBytes(logits * len(tokens))})
            scores = KindBytes(row=logits)
            return ExpectedReply(kinds={ChunkKind.SCORES: scores}, sequences=len(tokens), rows=tokens.total)
        case Score():
            lengths, queries = tokens.lengths, work.queries
            return _expected_scores(lengths[:queries], len(lengths) - queries, work.layout, explain=work.explain)
        case MaxSim():
            lengths = tokens.lengths if work.queries is None else work.queries.lengths
            return _expected_scores(lengths, len(work.documents.lengths), work.layout, explain=work.explain)


def _expected_scores(lengths: Sequence[int], documents: int, layout: Layout, *, explain: bool) -> ExpectedReply:
    """Scores of queries with so many rows or tokens each, with so many documents."""
    rows, columns = layout.shape(len(lengths), documents)
    scores = KindBytes(NUMBER_BYTES * rows * columns)
    if not explain:
        return ExpectedReply(kinds={ChunkKind.SCORES: scores})
    matches = KindBytes(NUMBER_BYTES * sum(lengths) * columns)
    return ExpectedReply(kinds={ChunkKind.SCORES: scores, ChunkKind.WINNERS: matches, ChunkKind.SIMILARITIES: matches})


def _expected_vectors(work: Encode, tokens: RaggedTokens, card: ModelCard, dense_rows: int) -> ExpectedReply:
    data_type, sequences, kinds = work.data_type, len(tokens), dict[int, KindBytes]()
    scale_bytes, dense, token_width, entries = data_type.scale_bytes, 0, 0, 0
    if OutputKind.DENSE in work.outputs:
        dense = work.dimensions or card.dimensions
        kinds[ChunkKind.DENSE] = KindBytes(dense_rows * data_type.row_bytes(dense))
        if scale_bytes:
            kinds[ChunkKind.DENSE_SCALES] = KindBytes(dense_rows * scale_bytes)
    if OutputKind.MULTI_VECTOR in work.outputs:
        token_width = work.dimensions or card.multi_vector_dimensions
        kinds[ChunkKind.MULTI_VECTOR] = KindBytes(row=data_type.row_bytes(token_width))
        if scale_bytes:
            kinds[ChunkKind.MULTI_VECTOR_SCALES] = KindBytes(row=scale_bytes)
        if work.token_ids:
            kinds[ChunkKind.TOKEN_IDS] = KindBytes(row=NUMBER_BYTES)
    if OutputKind.SPARSE in work.outputs:
        kinds[ChunkKind.SPARSE_INDICES] = kinds[ChunkKind.SPARSE_VALUES] = KindBytes(entry=NUMBER_BYTES)
        entries = sequences * min(work.sparse_top_k or card.vocabulary_size, card.vocabulary_size)
    return ExpectedReply(
        kinds=kinds,
        sequences=sequences,
        rows=_token_rows(work, tokens.lengths) if token_width else 0,
        entries=entries,
        limits_entries=work.sparse_top_k > 0,
        dense=dense,
        tokens=token_width,
        data_type=data_type,
        unit=(work.normalize or not dense) and (work.normalize_tokens or not token_width),
    )


def _sparse_bytes(work: Encode, texts: int, card: ModelCard) -> int:
    """Bytes of sparse vectors whose length `sparse_top_k` limits; a text has no more weights than the vocabulary."""
    return texts * min(work.sparse_top_k, card.vocabulary_size) * SPARSE_ENTRY_BYTES
