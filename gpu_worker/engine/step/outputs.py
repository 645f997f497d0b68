"""What the heads make of a step's hidden states: each output once, for all jobs of the step that want it.

Every job says as a value which rows it wants (`Wanted`), and gets those of its slice, a part of each output, as views.
All indices are uploaded first; then everything is computed in a row without a wait. Only jobs that compare rows on the
device are asked a second time, before the download: for what they compare.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.transfer import DownloadedArray, StepDownload, Upload, UploadedArray
from gpu_worker.engine.step.rows import RowFormat, RowGroup, RowOutput, SparseGroup, SparseOutput
from gpu_worker.engine.step.sequences import PackedSequences
from gpu_worker.kernels.maxsim.maxsim_kernels import Comparison, Mask, MaxSimKernel, Texts
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.model.heads.heads import Heads, LexicalHead, SpladeHead
from gpu_worker.ragged.texts import Counts, Ids, PackedTexts
from shared.vectors import Layout


class Wanted(NamedTuple):
    """The rows that a job wants of the sequences that end in a step; None or False: no such rows.

    `dense`: the format of pooled rows, one for each sequence or, where the job has any, for each of its token ranges.
    `tokens`: the format of the rows of selected tokens. Those of sequences with numbers from `in_place_from` on stay in
    the batch, where comparisons read them; None: none do. `sparse_top_k`: how many weights sparse vectors have at most,
    0 for all. `logits`: of sequences. `token_logits`: of selected tokens.
    """

    dense: RowFormat | None = None
    tokens: RowFormat | None = None
    in_place_from: int | None = None
    sparse_top_k: int | None = None
    logits: bool = False
    token_logits: bool = False


class ScoreOutput:
    """Scores of one comparison: `start` to `stop` of all scores of the step."""

    def __init__(self, comparisons: "_Comparisons", start: int, stop: int) -> None:
        self._comparisons, self._range = comparisons, slice(start, stop)

    @property
    def array(self) -> npt.NDArray[np.generic]:
        """The scores on the host, row-major, once the download arrived: a view."""
        return self._comparisons.scores[self._range]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What one comparison on the device found, read on the host: `scores` of `queries` [Q] with `documents`, row-major;
    and of an explanation which rows of the documents won, and their similarities."""

    queries: Counts
    documents: Counts
    scores: DownloadedArray | ScoreOutput
    winners: DownloadedArray | None = None
    similarities: DownloadedArray | None = None

    @property
    def table(self) -> npt.NDArray[np.float32]:
        """The scores [Q, D] of every document with every query, or [Q, 1] with its own, once the download arrived."""
        return self.scores.array.reshape(len(self.queries), -1)  # type: ignore[return-value]


class SliceRows:
    """What a step makes for a job slice, units `start` to `stop` - 1: the rows of `packed`, the sequences that end.

    Rows that the job does not want are not set, nor any where no sequence ends. `compared`: what a job that compares
    found, in its own order. `pooled`: what one that pools token rows made of each sequence, by its number.
    """

    __slots__ = ("_outputs", "compared", "dense", "logits", "packed", "pooled", "sparse", "start", "stop", "tokens")

    dense: RowOutput
    tokens: RowOutput
    sparse: SparseOutput
    logits: RowOutput

    def __init__(self, outputs: "Outputs", packed: PackedSequences, start: int, stop: int) -> None:
        self._outputs, self.packed, self.start, self.stop = outputs, packed, start, stop
        self.compared: Sequence[Compared] = ()
        self.pooled: dict[int, Any] = {}

    @property
    def finite(self) -> bool:
        """Whether the model's hidden states of the sequences were finite numbers, once the download arrived."""
        return not len(self.packed) or self._outputs.finite(self.packed)


class Outputs:
    """The outputs of one step, of the texts that end in it."""

    def __init__(
        self, texts: PackedTexts, device: torch.device, heads: Heads, dropped: Ids, maxsim: MaxSimKernel
    ) -> None:
        """`dropped`: special ids without a lexical weight."""
        self.device, self.maxsim, self._kernels = device, maxsim, row_kernels.choose(device)
        self._texts, self._heads, self._dropped = texts, heads, dropped
        self._dense: dict[RowFormat, RowGroup] = {}
        self._pooled: dict[RowGroup, list[tuple[Counts, Counts]]] = {}  # skipped tokens and ends of the rows
        self._tokens: dict[RowFormat, RowGroup] = {}
        self._logits, self._token_logits = RowGroup(RowFormat()), RowGroup(RowFormat())
        self._sparse: dict[int, SparseGroup] = {}
        self._in_place: list[tuple[PackedSequences, RowFormat]] = []  # documents that comparisons read
        self._comparisons = _Comparisons()
        self._computations: list[Callable[[Tensor, StepDownload], None]] = []
        self._rows_in_place: Tensor | None = None
        self._finite_tokens: DownloadedArray | None = None

    # On the host, while the step is packed.

    def slice_rows(self, wanted: Wanted, packed: PackedSequences, start: int, stop: int) -> SliceRows:
        """Notes what a job wants of its sequences; gives the rows of its units `start` to `stop` - 1."""
        slice_rows = SliceRows(self, packed, start, stop)
        if not len(packed):
            return slice_rows
        if wanted.dense is not None:
            slice_rows.dense = self._dense_rows(wanted.dense, packed)
        if wanted.tokens is not None:
            slice_rows.tokens = self._token_rows(wanted.tokens, packed, wanted.in_place_from)
        if wanted.sparse_top_k is not None:
            top_k = wanted.sparse_top_k
            slice_rows.sparse = self._sparse.setdefault(top_k, SparseGroup(top_k)).add_sequences(packed)
        if wanted.logits:
            slice_rows.logits = self._logits.add_rows(packed.places)
        if wanted.token_logits:
            slice_rows.logits = self._token_logits.add_rows(self._selected_rows(packed))
        return slice_rows

    def _dense_rows(self, row_format: RowFormat, packed: PackedSequences) -> RowOutput:
        pooled, group = packed.sequences.pooled, _group_of(self._dense, row_format)
        rows = pooled.rows_of(packed.numbers)
        self._pooled.setdefault(group, []).append((pooled.skip[rows], pooled.stops[rows]))
        places = packed.places if pooled.one_each else np.repeat(packed.places, pooled.counts[packed.numbers])
        return group.add_rows(places)

    def _token_rows(self, row_format: RowFormat, packed: PackedSequences, in_place_from: int | None) -> RowOutput:
        if in_place_from is not None:
            packed, in_place = packed.split(in_place_from)
            if len(in_place):
                self._in_place.append((in_place, row_format))
        return _group_of(self._tokens, row_format).add_rows(self._selected_rows(packed))

    def _selected_rows(self, packed: PackedSequences) -> Counts:
        """Rows of the batch that belong to selected tokens, one sequence after the other."""
        return self._texts.rows_of(packed.places)[packed.selected]

    def plan(self, upload: Upload) -> None:
        """Decides, once all requests are made, what is computed and in which order; uploads the indices for it."""
        for plan in (self._plan_dense, self._plan_tokens, self._plan_logits, self._plan_sparse):
            plan(upload)

    # On the device's thread.

    def compute(self, hidden: Tensor, download: StepDownload) -> None:
        """Makes all requested outputs of hidden states [T, H]."""
        self._finite_tokens = download.add_tensor(self._kernels.finite(hidden))
        computations = list(self._computations)
        # They refer to this object: the circle would keep the step's tensors until a full garbage collection.
        self._computations.clear()
        for computation in computations:
            computation(hidden, download)

    @property
    def rows_in_place(self) -> Tensor:
        """Token vectors of the whole batch, [T, W] float32, for documents that are compared in place."""
        assert self._rows_in_place is not None
        return self._rows_in_place

    def add_comparison(
        self, queries: Tensor, lengths: Counts, documents: PackedSequences, layout: Layout
    ) -> ScoreOutput:
        """Adds a MaxSim of query rows [sum of lengths, W], end to end, with documents that are read in place."""
        return self._comparisons.add(queries, lengths, self.texts_of(documents), layout)

    def compute_comparisons(self, download: StepDownload) -> None:
        """Computes all comparisons that jobs added, at once, and downloads their scores."""
        comparisons = self._comparisons
        if comparisons.added:
            queries = comparisons.joined_queries()
            scores = self.maxsim(queries, self.rows_in_place, comparisons.added, self.selected_mask())
            comparisons.downloaded = download.add_tensor(scores)

    def texts_of(self, packed: PackedSequences) -> Texts:
        """Finds the places of the sequences' tokens in the batch."""
        offsets = self._texts.offsets
        return Texts(starts=offsets[packed.places], lengths=np.diff(offsets)[packed.places])

    def selected_mask(self) -> Mask | None:
        """Makes the mask [T] of the batch: tokens of documents that were not selected are left out. None where all
        count."""
        if all(packed.sequences.selected.all() for packed, _ in self._in_place):
            return None
        mask: Mask = np.ones(self._texts.total, dtype=np.bool_)
        for packed, _ in self._in_place:
            mask[self._texts.rows_of(packed.places)] = packed.selected
        return mask

    # On the host again, once the download arrived.

    def finite(self, packed: PackedSequences) -> bool:
        """Whether the hidden states of all the sequences' tokens were finite numbers."""
        return self._all_finite or bool(self._finite_sequences[packed.places].all())

    @cached_property
    def _all_finite(self) -> bool:
        """Whether those of the whole batch were, as nearly always."""
        return bool(self._finite_sequences.all())

    @cached_property
    def _finite_sequences(self) -> Mask:
        """Sequences of the batch whose hidden states are all finite numbers, [S]."""
        assert self._finite_tokens is not None
        finite: Mask = np.logical_and.reduceat(self._finite_tokens.array, self._texts.offsets[:-1])
        return finite

    def _plan_dense(self, upload: Upload) -> None:
        """Pools the rows of all formats at once; the rows of a format lie together."""
        head, groups = self._heads.dense, list(self._dense.values())
        if not groups:
            return
        assert head is not None
        places = np.concatenate([group.index for group in groups])
        bounds = [pair for group in groups for pair in self._pooled[group]]
        skip, stops = (np.concatenate(side) for side in zip(*bounds, strict=True))
        pool = head.plan(self._texts.offsets[places], stops, skip, upload)
        counts = [len(group) for group in groups]

        def compute(hidden: Tensor, download: StepDownload) -> None:
            pooled = pool(hidden)
            for group, rows in zip(groups, pooled.split(counts) if len(groups) > 1 else [pooled], strict=True):
                group.finish(rows, download)

        self._computations.append(compute)

    def _plan_tokens(self, upload: Upload) -> None:
        """Projects all tokens once; requested rows are gathered, documents that are compared stay in place."""
        head, groups = self._heads.multi_vector, list(self._tokens.values())
        if not groups and not self._in_place:
            return
        assert head is not None
        gathers = [_Gather(group.index, self._texts.total, upload) for group in groups]
        finish_in_place = self._plan_rows_in_place(upload) if self._in_place else None

        def compute(hidden: Tensor, download: StepDownload) -> None:
            rows = head(hidden)
            for group, gather in zip(groups, gathers, strict=True):
                group.finish(rows, download, gather.index)
            if finish_in_place is not None:
                self._rows_in_place = finish_in_place(rows)

        self._computations.append(compute)

    def _plan_rows_in_place(self, upload: Upload) -> Callable[[Tensor], Tensor]:
        """Cuts and normalises the rows of the batch where they lie, in the formats of the requests for documents."""
        row_formats = {row_format for _, row_format in self._in_place}
        if len(row_formats) == 1:
            (only,) = row_formats
            return lambda rows: self._kernels.finished(rows, None, only.dimensions, only.unit)
        assert not any(row_format.dimensions for row_format in row_formats)
        unit = np.ones(self._texts.total, dtype=np.bool_)
        for packed, row_format in self._in_place:
            unit[self._texts.rows_of(packed.places)] = row_format.unit
        mask = upload.add_array(unit)
        finished = self._kernels.finished
        return lambda rows: torch.where(mask.tensor[:, None], finished(rows, None, 0, True), rows.float())

    def _plan_logits(self, upload: Upload) -> None:
        """Classifies the requested sequences, and the requested tokens."""
        if self._logits.requested:
            assert self._heads.classifier is not None
            classify = self._heads.classifier.plan(self._texts, self._logits.index, upload)
            self._computations.append(
                lambda hidden, download: self._download_logits(self._logits, classify(hidden), download)
            )
        if self._token_logits.requested:
            head = self._heads.token_classifier
            assert head is not None
            gather = _Gather(self._token_logits.index, self._texts.total, upload)
            self._computations.append(
                lambda hidden, download: self._download_logits(self._token_logits, head(gather(hidden)), download)
            )

    @staticmethod
    def _download_logits(group: RowGroup, logits: Tensor, download: StepDownload) -> None:
        group.download_rows(logits, torch.isfinite(logits.sum(dim=1)), download)

    def _plan_sparse(self, upload: Upload) -> None:
        """Makes sparse weights of the requested sequences only: logits of a vocabulary are the dearest output."""
        groups = list(self._sparse.values())
        if not groups:
            return
        head, batch = self._heads.sparse, self._texts
        places = np.concatenate([group.places for group in groups])
        counts = [len(group.places) for group in groups]
        lengths = np.diff(batch.offsets)[places]
        gather = _Gather(batch.rows_of(places), batch.total, upload)
        if isinstance(head, LexicalHead):
            tokens = [int(group_lengths.sum()) for group_lengths in np.split(lengths, np.cumsum(counts)[:-1])]
            self._computations.append(
                lambda hidden, download: self._download_lexical(groups, head(gather(hidden)).split(tokens), download)
            )
            return
        assert isinstance(head, SpladeHead)
        text_of_row = upload.add_array(np.repeat(np.arange(len(places)), lengths))

        def compute(hidden: Tensor, download: StepDownload) -> None:
            weights = head(gather(hidden), text_of_row.tensor, len(places))
            for group, rows in zip(groups, weights.split(counts), strict=True):
                group.download_rows(rows, download)

        self._computations.append(compute)

    def _download_lexical(self, groups: list[SparseGroup], weights: Sequence[Tensor], download: StepDownload) -> None:
        for group, token_weights in zip(groups, weights, strict=True):
            group.download_tokens(token_weights, self._dropped, download)


class _Comparisons:
    """All comparisons of a step with documents of its batch. Queries are few and are joined; documents stay where they
    lie."""

    def __init__(self) -> None:
        self.added: list[Comparison] = []
        self.downloaded: DownloadedArray | None = None
        self._queries: list[Tensor] = []
        self._query_count = self._score_count = 0

    def add(self, queries: Tensor, lengths: Counts, documents: Texts, layout: Layout) -> ScoreOutput:
        """Adds a comparison of query rows [sum of lengths, W], end to end, with `documents`, places in the batch."""
        end_to_end = Texts.end_to_end(lengths)
        joined = Texts(starts=end_to_end.starts + self._query_count, lengths=lengths)
        comparison = Comparison(queries=joined, documents=documents, layout=layout)
        self._queries.append(queries)
        self.added.append(comparison)
        self._query_count += len(queries)
        start, self._score_count = self._score_count, self._score_count + comparison.count
        return ScoreOutput(self, start, self._score_count)

    def joined_queries(self) -> Tensor:
        """Joins the query rows of all comparisons."""
        return self._queries[0] if len(self._queries) == 1 else torch.cat(self._queries)

    @property
    def scores(self) -> npt.NDArray[np.generic]:
        """Scores of all comparisons, one comparison after the other, once the download arrived."""
        assert self.downloaded is not None
        return self.downloaded.array


def _group_of(groups: dict[RowFormat, RowGroup], row_format: RowFormat) -> RowGroup:
    """Finds the group of all rows in a format; made for the first of them."""
    group = groups.get(row_format)
    if group is None:
        group = groups[row_format] = RowGroup(row_format)
    return group


class _Gather:
    """Takes rows of a tensor [T, W] in the order of an index; returns the tensor itself where that is every row."""

    def __init__(self, index: Counts, total: int, upload: Upload) -> None:
        takes_all = len(index) == total and bool((index == np.arange(total)).all())
        self._index: UploadedArray | None = None if takes_all else upload.add_array(index)

    @property
    def index(self) -> Tensor | None:
        """The index [n] on the device; None: every row, in order."""
        return None if self._index is None else self._index.tensor

    def __call__(self, rows: Tensor) -> Tensor:
        return rows if self._index is None else rows.index_select(0, self._index.tensor)
