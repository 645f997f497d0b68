"""What a frontend asks of a worker, and what it gets."""

from dataclasses import dataclass

from shared.ragged import RaggedTokens
from shared.vectors import DataType, Layout, MultiVectors, OutputKind, ScoringMethod

NO_TOKENS = RaggedTokens(ids=b"", lengths=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Encode:
    """Vectors of each sequence. `dimensions` 0 means all."""

    outputs: frozenset[OutputKind]
    dimensions: int = 0
    normalize: bool
    normalize_tokens: bool
    data_type: DataType = DataType.FLOAT32


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Scores of the first `queries` sequences against the others."""

    method: ScoringMethod
    layout: Layout
    queries: int
    unit_rows: bool
    mean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSim:
    """Scores of given vectors."""

    queries: MultiVectors
    documents: MultiVectors
    layout: Layout
    unit_rows: bool
    mean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One unit of work that is answered on its own.

    `remaining` is the time in seconds until nobody waits any more, None for ever; `prompt_lengths` are the
    tokens at the start of each sequence that pooling leaves out, empty for none.
    """

    id: int
    work: Encode | Score | MaxSim
    tokens: RaggedTokens = NO_TOKENS
    prompt_lengths: tuple[int, ...] = ()
    remaining: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Packed rows: `data` in the type that was asked for, `scales` one float32 a row for INT8."""

    dimensions: int
    data: bytes
    scales: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The outcome of a job: what was asked for, in the order of its sequences, and its times in seconds.

    `scores` is float32, row-major.
    """

    dense: Rows | None = None
    tokens: Rows | None = None
    row_lengths: tuple[int, ...] = ()
    scores: bytes = b""
    queue: float = 0.0
    compute: float = 0.0
