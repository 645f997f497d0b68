"""The sequences of a job, and which of them, or of their tokens, a step computes. No I/O."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpu_worker.ragged.pieces import Piece, SequenceCache
from gpu_worker.ragged.texts import Counts, Ids, offsets_of, row_ranges
from shared.errors import InvalidInput
from shared.jobs import Job, TokenRanges

TokenMask = npt.NDArray[np.bool_]
Select = Callable[[Ids, Counts], TokenMask]
"""Makes the mask [T] of selected tokens from token ids [T] of sequences that begin at offsets [S + 1]."""


Kind = tuple[int, str]
"""What sequences have in common that may share tokens: the number of their adapter, and the key of their caller. How
long a step takes must not tell a caller what the texts of another begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledTokens:
    """The tokens of S sequences that R dense rows are pooled of, those of a sequence after those of the one before it.

    `counts` [S]: rows of each sequence. Row i is pooled of the tokens before `stops` [R] of its sequence, without the
    first `skip` [R]: a token's weight depends on its place in the sequence, wherever the row begins.
    """

    counts: Counts
    skip: Counts
    stops: Counts
    one_each: bool = False
    """Whether each sequence has one row, so that a row has its sequence's number."""

    @classmethod
    def of(cls, lengths: Counts, skip: Counts, ranges: TokenRanges | None) -> "PooledTokens":
        """Makes one row for each sequence of `lengths` [S], or for each range, without the first `skip` [S] tokens of
        the sequence. Raises InvalidInput for a range of which no token is left."""
        if ranges is None:
            return cls(counts=np.ones(len(lengths), dtype=np.int64), skip=skip, stops=lengths, one_each=True)
        counts = np.array(ranges.counts, dtype=np.int64)
        starts, stops = (np.array(side, dtype=np.int64) for side in (ranges.starts, ranges.stops))
        starts = np.maximum(starts, np.repeat(skip, counts))
        if (starts >= stops).any():
            raise InvalidInput("a token range has only tokens of a prompt or an instruction, which are not pooled")
        return cls(counts=counts, skip=starts, stops=stops)

    def rows_of(self, numbers: Counts) -> Counts:
        """Selects the rows of the sequences `numbers` [n], in their order."""
        if self.one_each:
            return numbers
        return row_ranges((np.cumsum(self.counts) - self.counts)[numbers], self.counts[numbers])

    def __len__(self) -> int:
        """Number of rows: R."""
        return len(self.stops)


class Sequences:
    """S sequences of one job, T tokens end to end; a sequence has a number, its place in the job.

    `ids` [T], `lengths` [S], `offsets` [S + 1]. Pooling leaves out the first `skip` [S] tokens of each sequence;
    `pooled` has the tokens that dense rows are made of. The second text of a pair begins at `second_segments` [S], 0
    for no pair. No token attends to the last `tails` [S] tokens. `selected` [T]: tokens that get a row of their own, a
    vector or logits. Sequences with numbers below `queries` are queries of a Score, which come before all documents.
    `adapter`: the number of the adapter that the job is for, 0 for none. `key`: the job's fairness key.
    """

    adapter = 0

    def __init__(self, job: Job, skip: Counts | None = None, select: Select | None = None, *, queries: int = 0) -> None:
        """`skip`: None for no token. `select`: chooses the selected tokens; None: all tokens."""
        self.queries, self.key = queries, job.key
        self.lengths: Counts = np.array(job.tokens.lengths, dtype=np.int64)
        self.offsets: Counts = offsets_of(self.lengths)
        self.ids: Ids = np.frombuffer(job.tokens.ids, dtype="<i4")
        zeros = np.zeros(len(self.lengths), dtype=np.int64)
        self.skip = zeros if skip is None else skip
        self.pooled = PooledTokens.of(self.lengths, self.skip, job.ranges)
        self.second_segments: Counts = np.array(job.second_segments, dtype=np.int64) if job.second_segments else zeros
        self.tails: Counts = np.array(job.unattended_tails, dtype=np.int64) if job.unattended_tails else zeros
        self._select = select

    def __len__(self) -> int:
        """Number of sequences: S."""
        return len(self.lengths)

    @cached_property
    def selected(self) -> TokenMask:
        """Whether each token gets a row of its own: [T]. Nobody writes to it, since `selected_counts` follows it."""
        if self._select is None:
            return np.ones(len(self.ids), dtype=np.bool_)
        return self._select(self.ids, self.offsets)

    @property
    def kind(self) -> Kind:
        """What other sequences that share tokens with these must have."""
        return self.adapter, self.key

    def ids_of(self, number: int) -> Ids:
        """Returns the token ids of one sequence."""
        return self.ids[self.offsets[number] : self.offsets[number + 1]]

    @cached_property
    def selected_counts(self) -> Counts:
        """Number of selected tokens in each sequence: [S]."""
        counts: Counts = np.add.reduceat(self.selected.astype(np.int64), self.offsets[:-1])
        return counts

    def selected_places(self, numbers: Counts) -> Counts:
        """Finds the places of some sequences' selected tokens among all selected tokens of the job."""
        counts = self.selected_counts
        return row_ranges((np.cumsum(counts) - counts)[numbers], counts[numbers])


@dataclass(frozen=True)
class Selection:
    """What a step computes of a job: of the sequences `numbers` [n], ascending, the tokens `starts` to `stops` - 1 [n].

    `caches` has, by number, the caches of the sequences that are computed in pieces; among these are the `leaders`,
    whose keys and values other sequences take. `joined`: whether sequences of a unit must share
    tokens, since it costs no more than what is computed then. `uncut`: whether all are known to be `whole`.
    """

    sequences: Sequences
    numbers: Counts
    starts: Counts
    stops: Counts
    _: KW_ONLY
    caches: dict[int, SequenceCache] = field(default_factory=dict)
    leaders: frozenset[int] = frozenset()
    joined: bool = False
    uncut: bool = False

    @classmethod
    def of_whole(cls, sequences: Sequences, numbers: Counts) -> "Selection":
        """Selects all tokens of the sequences `numbers`."""
        return cls(
            sequences=sequences,
            numbers=numbers,
            starts=np.zeros(len(numbers), dtype=np.int64),
            stops=sequences.lengths[numbers],
        )

    @cached_property
    def ended(self) -> npt.NDArray[np.bool_]:
        """Whether each sequence ends in the step: [n]."""
        if self.uncut:
            return self.whole
        ends: TokenMask = self.stops == self.sequences.lengths[self.numbers]
        return ends

    @cached_property
    def whole(self) -> npt.NDArray[np.bool_]:
        """Whether each sequence is computed in this step alone, and keeps nothing for others: [n]."""
        if self.uncut:
            return np.ones(len(self.numbers), dtype=np.bool_)
        computed: TokenMask = self.ended & (self.starts == 0)
        if self.leaders:
            computed &= [number not in self.leaders for number in self.numbers.tolist()]
        return computed

    @property
    def whole_numbers(self) -> Counts:
        """The numbers of the sequences that are `whole`."""
        return self.numbers if self.uncut else self.numbers[self.whole]

    def pieces(self) -> list[Piece]:
        """The pieces of the sequences that are not `whole`."""
        if self.uncut or self.whole.all():
            return []
        chosen = ~self.whole
        bounds = (array[chosen].tolist() for array in (self.numbers, self.starts, self.stops))
        return [
            Piece(self.sequences.ids_of(number), start, stop, self.caches[number])
            for number, start, stop in zip(*bounds, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequences:
    """Sequences of one job that outputs of a step are made of: their `numbers` [n] in the job, ascending, and `places`
    [n] in the step."""

    sequences: Sequences
    numbers: Counts
    places: Counts

    @property
    def selected(self) -> TokenMask:
        """Mask of the selected tokens over all tokens of the sequences, one sequence after the other."""
        sequences = self.sequences
        return sequences.selected[row_ranges(sequences.offsets[self.numbers], sequences.lengths[self.numbers])]

    def split(self, first: int) -> tuple["PackedSequences", "PackedSequences"]:
        """Splits them into the sequences with numbers below `first`, and the rest."""
        middle = int(np.searchsorted(self.numbers, first))
        sides = (slice(None, middle), slice(middle, None))
        before, after = (
            PackedSequences(sequences=self.sequences, numbers=self.numbers[side], places=self.places[side])
            for side in sides
        )
        return before, after

    @property
    def tokens(self) -> int:
        """Tokens of all n sequences."""
        return int(self.sequences.lengths[self.numbers].sum())

    def __len__(self) -> int:
        """Number of sequences: n."""
        return len(self.numbers)
