"""Vectors, scores and their options in both services. Numbers of enums equal those of the contract."""

from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate

from shared.errors import InvalidInput

MOST_DIMENSIONS = 16_384
"""Most dimensions of a caller's rows: the memory of MaxSim's kernels grows with them, and no model has more."""
MOST_SIMILARITIES, MOST_ELEMENTS = 2_000_000_000, 67_108_864
"""Most products of two rows in one MaxSim, and most rows x dimensions of either side of it."""


class DataType(IntEnum):
    """How one number of a vector is stored; see vectors.proto."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    BINARY = 5

    def row_bytes(self, dimensions: int) -> int:
        """Bytes of one row, without its scale."""
        if self is DataType.BINARY:
            return (dimensions + 7) // 8
        return dimensions * {DataType.FLOAT32: 4, DataType.INT8: 1}.get(self, 2)

    @property
    def scale_bytes(self) -> int:
        """Bytes of one row's scale."""
        return 4 if self is DataType.INT8 else 0


class OutputKind(IntEnum):
    """Kinds of output that a model has for a text."""

    DENSE = 1
    SPARSE = 2
    MULTI_VECTOR = 3


class InputType(IntEnum):
    """The role of a text: query or document."""

    UNSPECIFIED = 0
    QUERY = 1
    DOCUMENT = 2


class TruncationSide(IntEnum):
    """Which end of an over-long text is cut off."""

    RIGHT = 1
    LEFT = 2


class ScoringMethod(IntEnum):
    """How a query is compared with a document."""

    CROSS_ENCODER = 1
    LATE_INTERACTION = 2
    DENSE = 3
    SPARSE = 4
    HYBRID = 5
    LISTWISE = 6


class Task(IntEnum):
    """The task that a model can serve."""

    EMBED = 1
    RERANK = 2
    CLASSIFY = 3
    CLASSIFY_TOKENS = 4


class Activation(IntEnum):
    """How a classifier's logits become scores; see model.proto."""

    NONE = 0
    IDENTITY = 1
    SIGMOID = 2
    SOFTMAX = 3
    TANH = 4


class QueryExpansion(IntEnum):
    """When queries are filled up with expansion tokens."""

    NONE = 0
    FIXED = 1
    MIN = 2


class Layout(IntEnum):
    """The pairs of queries and documents that are scored."""

    PAIRS = 1
    MATRIX = 2

    def shape(self, queries: int, documents: int) -> tuple[int, int]:
        """Rows and columns of the scores."""
        return (queries, 1) if self is Layout.PAIRS else (queries, documents)


MOST_POOLED = 2048
"""Most tokens of a document whose rows are pooled: clustering takes time and memory by the square of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPooling:
    """How the token rows of a document become fewer; the fields are those of `selvage.v1.TokenPooling`.

    The first `protected_tokens` rows stay, the others become 1 / `pool_factor` as many (arXiv:2409.14683). `normalize`:
    whether those that are left get unit length. Raises InvalidInput for a factor below 1, and for less than no rows.
    """

    pool_factor: float
    protected_tokens: int = 1
    normalize: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.pool_factor < float("inf"):
            why = f"pool_factor is {self.pool_factor:g}, must be a number of at least 1"
            raise InvalidInput(why, field="pool_factor")
        if self.protected_tokens < 0:
            why = f"protected_tokens is {self.protected_tokens}, must be at least 0"
            raise InvalidInput(why, field="protected_tokens")

    def rows_left(self, rows: int) -> int:
        """The number of a document's token rows that pooling leaves; it leaves fewer where distances are equal."""
        free = rows - self.protected_tokens
        return self.protected_tokens + max(int(free // self.pool_factor), 1) if free > 1 else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiVectors:
    """Rows of S texts laid end to end.

    `lengths` are the rows of each text (0 allowed), `data` holds sum(lengths) rows in `data_type`,
    little-endian; `scales` one float32 a row for INT8, else nothing. Raises ValueError where bytes and
    shape disagree.
    """

    data_type: DataType
    dimensions: int
    lengths: tuple[int, ...]
    data: bytes
    scales: bytes = b""

    def __post_init__(self) -> None:
        if self.dimensions < 1:
            raise ValueError(f"dimensions is {self.dimensions}, must be at least 1")
        if any(length < 0 for length in self.lengths):
            raise ValueError("a length is negative")
        for name, held, wanted in (
            ("data", len(self.data), self.rows * self.data_type.row_bytes(self.dimensions)),
            ("scales", len(self.scales), self.rows * self.data_type.scale_bytes),
        ):
            if held != wanted:
                raise ValueError(f"{name} holds {held} bytes, its shape says {wanted}")

    @property
    def rows(self) -> int:
        """Rows of all texts."""
        return sum(self.lengths)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, without its scale."""
        return self.data_type.row_bytes(self.dimensions)

    @property
    def offsets(self) -> tuple[int, ...]:
        """[S + 1] where each text begins, in rows; the last entry is all rows."""
        return (0, *accumulate(self.lengths))

    def part(self, start: int, stop: int) -> "MultiVectors":
        """The texts from `start` to `stop`."""
        offsets = self.offsets
        first, last = offsets[start], offsets[stop]
        row, scale = self.row_bytes, self.data_type.scale_bytes
        return replace(
            self,
            lengths=self.lengths[start:stop],
            data=self.data[first * row : last * row],
            scales=self.scales[first * scale : last * scale],
        )
