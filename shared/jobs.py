"""Jobs, which a frontend sends to a worker, and their results."""

from dataclasses import dataclass
from enum import IntEnum

from shared.ragged import RaggedTokens, TokenRanges
from shared.vectors import DataType, InputType, Layout, MultiVectors, OutputKind, ScoringMethod

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

    `input_type`: what the sequences are, which decides whether a skiplist counts.
    """

    outputs: frozenset[OutputKind]
    dimensions: int = 0
    normalize: bool
    normalize_tokens: bool
    data_type: DataType = DataType.FLOAT32
    sparse_top_k: int = 0
    token_ids: bool = False
    input_type: InputType = InputType.UNSPECIFIED


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

    `explain`: also which document tokens won; LATE_INTERACTION with one query only.
    """

    method: ScoringMethod
    layout: Layout
    queries: int
    unit_rows: bool
    mean: bool
    weights: HybridWeights | None = None
    explain: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
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
