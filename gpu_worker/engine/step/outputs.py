"""What the heads make of a step's hidden states: each output once, for all job slices of the step that want it.

Job slices make their requests on the host. Then all indices are uploaded, everything is computed in a row without a
wait, and every slice has its part of an output as a view.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.engine.step.comparisons import Comparisons, ScoreOutput
from gpu_worker.engine.step.download import DownloadedArray, StepDownload
from gpu_worker.engine.step.row_outputs import RowFormat, RowGroup, RowOutput
from gpu_worker.engine.step.sequences import PackedSequences
from gpu_worker.engine.step.sparse_outputs import SparseGroup, SparseOutput
from gpu_worker.kernels.maxsim.comparison import Mask, MaxSimKernel, Texts
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.model.heads.heads import Heads, LexicalHead, SpladeHead
from gpu_worker.ragged.texts import PackedTexts
from gpu_worker.ragged.token_types import Counts, Ids
from gpu_worker.ragged.upload import Upload, UploadedArray
from shared.vectors import Layout


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
        self._in_place: list[tuple[PackedSequences, RowFormat]] = []
        self._comparisons = Comparisons(maxsim)
        self._computations: list[Callable[[Tensor, StepDownload], None]] = []
        self._rows_in_place: Tensor | None = None
        self._finite_tokens: DownloadedArray | None = None

    # On the host, while the step is packed: requests of the job slices.

    def request_dense_rows(self, packed: PackedSequences, row_format: RowFormat) -> RowOutput:
        """Requests pooled rows, one for each sequence or, where the job has any, for each of its token ranges."""
        pooled, group = packed.sequences.pooled, _group_of(self._dense, row_format)
        rows = pooled.rows_of(packed.numbers)
        self._pooled.setdefault(group, []).append((pooled.skip[rows], pooled.stops[rows]))
        places = packed.places if pooled.one_each else np.repeat(packed.places, pooled.counts[packed.numbers])
        return group.add_rows(places)

    def request_token_rows(self, packed: PackedSequences, row_format: RowFormat) -> RowOutput:
        """Requests token vectors of the selected tokens, one sequence after the other."""
        return _group_of(self._tokens, row_format).add_rows(self._selected_rows(packed))

    def request_documents(self, packed: PackedSequences, row_format: RowFormat) -> None:
        """Requests token vectors of documents that `add_comparison` will read in place, where the batch has them."""
        self._in_place.append((packed, row_format))

    def request_logits(self, packed: PackedSequences) -> RowOutput:
        """Requests logits [n, labels] float32, one row for each sequence."""
        return self._logits.add_rows(packed.places)

    def request_token_logits(self, packed: PackedSequences) -> RowOutput:
        """Requests logits [.., labels] float32, one row for each selected token."""
        return self._token_logits.add_rows(self._selected_rows(packed))

    def request_sparse_vectors(self, packed: PackedSequences, top_k: int = 0) -> SparseOutput:
        """Requests the sparse vector of each sequence: its `top_k` largest weights, 0 for all."""
        return self._sparse.setdefault(top_k, SparseGroup(top_k)).add_sequences(packed)

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
        return self._comparisons.add_comparison(queries, lengths, self.texts_of(documents), layout)

    def compute_comparisons(self, download: StepDownload) -> None:
        """Computes all comparisons that job slices added, at once."""
        if self._comparisons:
            self._comparisons.compute(self.rows_in_place, self.selected_mask(), download)

    def texts_of(self, packed: PackedSequences) -> Texts:
        """Places of the sequences' tokens in the batch."""
        offsets = self._texts.offsets
        return Texts(starts=offsets[packed.places], lengths=np.diff(offsets)[packed.places])

    def selected_mask(self) -> Mask | None:
        """Mask [T] of the batch: tokens of documents that were not selected are left out. None where all count."""
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

    def _selected_rows(self, packed: PackedSequences) -> Counts:
        """Rows of the batch that belong to selected tokens, one sequence after the other."""
        return self._texts.rows_of(packed.places)[packed.selected]

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
        return lambda rows: torch.where(mask.tensor[:, None], F.normalize(rows.float(), dim=1), rows)

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


def _group_of(groups: dict[RowFormat, RowGroup], row_format: RowFormat) -> RowGroup:
    """The group of all rows in a format; made for the first of them."""
    group = groups.get(row_format)
    if group is None:
        group = groups[row_format] = RowGroup(row_format)
    return group


class _Gather:
    """Takes rows of a tensor [T, W] in the order of an index; returns the tensor itself where that is every row."""

    def __init__(self, index: Counts, total: int, upload: Upload) -> None:
        whole = len(index) == total and bool((index == np.arange(total)).all())
        self._index: UploadedArray | None = None if whole else upload.add_array(index)

    @property
    def index(self) -> Tensor | None:
        """The index [n] on the device; None: every row, in order."""
        return None if self._index is None else self._index.tensor

    def __call__(self, rows: Tensor) -> Tensor:
        return rows if self._index is None else rows.index_select(0, self._index.tensor)
