"""Jobs, which a frontend sends to a worker, their token ids, and their results. Standard library only.

Sequences of different lengths lie end to end, without padding.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise

from shared.vectors import DataType, InputType, Layout, MultiVectors, OutputKind, ScoringMethod, TokenPooling

assert array("i").itemsize == 4
MESSAGE_SEQUENCES = 1024 * 1024
"""Most sequences of all jobs in one message, and most texts of either side of a MaxSim."""
RANGE_TIMES = 64
"""Most times that the token ranges of a sequence may have its tokens over: so pooling stays cheap beside the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedTokens:
    """Token ids of S sequences, T tokens in all.

    `ids` holds T little-endian int32, `lengths` S counts >= 1 that add up to T. Raises ValueError otherwise.
    """

    ids: bytes
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.lengths, default=1) < 1:
            raise ValueError("a sequence has no tokens")
        total = sum(self.lengths)
        if total * 4 != len(self.ids):
            raise ValueError(f"lengths add up to {total} tokens, ids hold {len(self.ids) / 4:g}")

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> "RaggedTokens":
        """Packs lists of ids."""
        flat = array("i")
        for sequence in sequences:
            flat.extend(sequence)
        return cls.packed(flat, list(map(len, sequences)))

    @classmethod
    def packed(cls, flat: "array[int]", lengths: Sequence[int]) -> "RaggedTokens":
        """Takes ids of 4 bytes that lie end to end already."""
        if sys.byteorder == "big":
            flat.byteswap()
        return cls(ids=flat.tobytes(), lengths=tuple(lengths))

    @property
    def total(self) -> int:
        """T, the tokens of all sequences."""
        return len(self.ids) // 4

    @property
    def offsets(self) -> tuple[int, ...]:
        """[S + 1] where each sequence begins, in tokens; the last entry is T."""
        return (0, *accumulate(self.lengths))

    def part(self, start: int, stop: int) -> "RaggedTokens":
        """Sequences `start` to `stop` - 1."""
        lengths = self.lengths[start:stop]
        first = sum(self.lengths[:start])
        return RaggedTokens(ids=self.ids[4 * first : 4 * (first + sum(lengths))], lengths=lengths)

    def __len__(self) -> int:
        """S, the number of sequences."""
        return len(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRanges:
    """Ranges of tokens of S sequences, R in all, those of a sequence after those of the one before it.

    `counts` [S]: ranges of each sequence, at least one. Range i has the tokens `starts` [i] to `stops` [i] - 1 of its
    sequence, at least one. Ranges may overlap. Raises ValueError where the numbers disagree.
    """

    counts: tuple[int, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.counts, default=1) < 1 or not sum(self.counts) == len(self.starts) == len(self.stops):
            raise ValueError("a sequence has no token range, or starts and stops disagree with the counts")
        if any(not 0 <= start < stop for start, stop in zip(self.starts, self.stops, strict=True)):
            raise ValueError("a token range has no tokens")

    @property
    def offsets(self) -> tuple[int, ...]:
        """[S + 1] where the ranges of each sequence begin; the last entry is R."""
        return (0, *accumulate(self.counts))

    def of_each(self) -> list[tuple[tuple[int, int], ...]]:
        """The ranges of each sequence: their starts and stops."""
        ranges = tuple(zip(self.starts, self.stops, strict=True))
        return [ranges[start:stop] for start, stop in pairwise(self.offsets)]

    def select(self, places: Sequence[int]) -> "TokenRanges":
        """The ranges of the sequences at these places, in their order."""
        offsets = self.offsets
        rows = [row for place in places for row in range(offsets[place], offsets[place + 1])]
        return TokenRanges(
            counts=tuple(self.counts[place] for place in places),
            starts=tuple(self.starts[row] for row in rows),
            stops=tuple(self.stops[row] for row in rows),
        )

    def __len__(self) -> int:
        """R, the number of ranges."""
        return len(self.starts)


NO_TOKENS = RaggedTokens(ids=b"", lengths=())


class Priority(IntEnum):
    """Classes of requests; the one with the lowest number is served first. Numbers equal those of the contract."""

    INTERACTIVE = 1
    DEFAULT = 2
    BULK = 3


PRIORITIES = {priority.name.lower(): priority for priority in Priority}
"""The priorities by the words that callers use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encode:
    """Vectors of each sequence. `dimensions` 0 means all, `sparse_top_k` 0 all weights above zero.

    `input_type`: what the sequences are, which decides whether a skiplist counts. `pooling`: how token rows become
    fewer; these get unit length before, and `normalize_tokens` is that of the pooling.
    """

    outputs: frozenset[OutputKind]
    dimensions: int = 0
    normalize: bool
    normalize_tokens: bool
    data_type: DataType = DataType.FLOAT32
    sparse_top_k: int = 0
    token_ids: bool = False
    input_type: InputType = InputType.UNSPECIFIED
    pooling: TokenPooling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridWeights:
    """Weights of the parts of a HYBRID score, which are divided by their sum. Raises ValueError for senseless ones."""

    dense: float = 1.0
    sparse: float = 1.0
    multi_vector: float = 1.0

    def __post_init__(self) -> None:
        parts = (self.dense, self.sparse, self.multi_vector)
        if not all(0 <= part < float("inf") for part in parts) or not sum(parts):
            raise ValueError("each weight must be a number of 0 or more, and one of them above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Scores of the first `queries` sequences against the others. `weights`: HYBRID only.

    `explain`: also which document tokens won; LATE_INTERACTION with one query only. `pooling`: how the token rows of
    documents become fewer; these get unit length before. LATE_INTERACTION without `explain` only.
    """

    method: ScoringMethod
    layout: Layout
    queries: int
    unit_rows: bool
    mean: bool
    weights: HybridWeights | None = None
    explain: bool = False
    pooling: TokenPooling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Classify:
    """Logits of every sequence, or with `tokens` of every token, or of the tokens with the id `token_id`."""

    tokens: bool = False
    token_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSim:
    """Scores of a caller's documents with a caller's queries, or, where `queries` is None, with the job's sequences.

    `unit_rows`: whether rows of callers get unit length; `unit_queries`: whether rows of sequences do. `explain`: also
    which document rows won.
    """

    queries: MultiVectors | None
    documents: MultiVectors
    layout: Layout
    unit_rows: bool
    mean: bool
    unit_queries: bool = True
    explain: bool = False


Work = Encode | Score | Classify | MaxSim


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a frontend asks of a worker for a request, or for a part of one, and what it gets a single outcome for.

    `remaining`: seconds until nobody waits any more; None: for ever. `prompt_lengths`: tokens at the start of each
    sequence that pooling leaves out; empty: none. `second_segments`: where the second text of a pair begins in each
    sequence, 0 for nowhere; empty: nowhere in any. `unattended_tails`: tokens at the end of each sequence that no token
    attends to; empty: none. `ranges`: the token ranges that each get a dense row, instead of the sequences; None: none.
    `key`: the fairness key; jobs of different keys share the worker evenly. `request_id`: the id of the request, for
    logs. `traceparent`: the request's place in a trace. `model`: the fingerprint of the model that it is for, where
    that is an adapter over the worker's own; empty: the worker's own.
    """

    id: int
    work: Work
    tokens: RaggedTokens = NO_TOKENS
    prompt_lengths: tuple[int, ...] = ()
    second_segments: tuple[int, ...] = ()
    unattended_tails: tuple[int, ...] = ()
    ranges: TokenRanges | None = None
    remaining: float | None = None
    priority: Priority = Priority.DEFAULT
    key: str = ""
    request_id: str = ""
    traceparent: str = ""
    model: str = ""


class ChunkKind(IntEnum):
    """What the bytes of a piece of a result are; see worker.proto."""

    DENSE = 1
    DENSE_SCALES = 2
    MULTI_VECTOR = 3
    MULTI_VECTOR_SCALES = 4
    SCORES = 5
    SPARSE_INDICES = 6
    SPARSE_VALUES = 7
    TOKEN_IDS = 8
    WINNERS = 9
    SIMILARITIES = 10


PackedBytes = bytes | memoryview
"""Bytes of numbers; in the worker a view of the memory that the step was downloaded to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Packed rows: `data` in the type that was asked for, `scales` one float32 a row for INT8."""

    dimensions: int
    data: PackedBytes
    scales: PackedBytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRows:
    """Weighted vocabulary ids of S sequences, one after the other, ids ascending in each.

    `lengths` [S], `indices` little-endian int32, `values` float32.
    """

    lengths: tuple[int, ...]
    indices: bytes
    values: bytes


@dataclass(slots=True, kw_only=True)
class JobResult:
    """The result of a job: what was asked for, in the order of its sequences or token ranges, and its times in seconds.

    `scores` is float32, row-major: scores, or logits. `row_lengths` are the token rows, or the rows of token logits,
    of each sequence; `token_ids` the int32 id of each token row, where asked for. `winners` int32 and `similarities`
    float32 explain scores: for each of them, and in it for each row (of sequences: each token) of its query, which row
    (token) of the document won, -1 for none.
    """

    dense: Rows | None = None
    sparse: SparseRows | None = None
    tokens: Rows | None = None
    row_lengths: tuple[int, ...] = ()
    token_ids: bytes = b""
    scores: PackedBytes = b""
    winners: bytes = b""
    similarities: bytes = b""
    queue: float = 0.0
    compute: float = 0.0
