"""What the heads make of a step's hidden states: each output once, for all jobs of the step that want it.

Jobs say on the host what they want; then all indices are staged, everything is computed in a row without a wait, and
each job has its share as a view.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.engine.step.comparisons import Comparing, Comparisons
from gpu_worker.engine.step.download import StepDownload
from gpu_worker.engine.step.row_outputs import RowForm, RowGroup, RowOutput
from gpu_worker.engine.step.sequences import Member
from gpu_worker.engine.step.sparse_outputs import SparseGroup, SparseShare
from gpu_worker.kernels.maxsim.comparison import Mask, MaxSimKernel, Texts
from gpu_worker.kernels.rows import choice
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse import LexicalHead, SpladeHead
from gpu_worker.ragged.batch import Counts, Ids, RaggedBatch
from gpu_worker.ragged.upload import Staged, Upload
from shared.vectors import Layout


class Outputs:
    """The outputs of one step, each made once."""

    def __init__(
        self, batch: RaggedBatch | None, device: torch.device, heads: Heads, dropped: Ids, maxsim: MaxSimKernel
    ) -> None:
        """`batch`: None where no job of the step has sequences. `dropped`: special ids without a lexical weight."""
        self.device, self.maxsim, self._kernels = device, maxsim, choice.choose(device)
        self._packed, self._heads, self._dropped = batch, heads, dropped
        self._dense: dict[RowForm, RowGroup] = {}
        self._skips: dict[RowForm, list[Counts]] = {}
        self._tokens: dict[RowForm, RowGroup] = {}
        self._logits, self._token_logits = RowGroup(RowForm()), RowGroup(RowForm())
        self._sparse: dict[int, SparseGroup] = {}
        self._in_place: list[tuple[Member, RowForm]] = []
        self._comparisons = Comparisons(maxsim)
        self._runs: list[Callable[[Tensor, StepDownload], None]] = []
        self._placed: Tensor | None = None
        self._whole: int | None = None
        self._shipment: StepDownload | None = None

    @property
    def _batch(self) -> RaggedBatch:
        assert self._packed is not None
        return self._packed

    # What jobs ask for, on the host.

    def dense(self, member: Member, form: RowForm) -> RowOutput:
        """Pooled rows, one a sequence."""
        self._skips.setdefault(form, []).append(member.sequences.skip[member.chosen])
        return self._dense.setdefault(form, RowGroup(form)).add(member.places)

    def tokens(self, member: Member, form: RowForm) -> RowOutput:
        """Token vectors of the kept tokens, one sequence after the other."""
        return self._tokens.setdefault(form, RowGroup(form)).add(self._kept_rows(member))

    def documents(self, member: Member, form: RowForm) -> None:
        """Token vectors of every token are compared where they lie; see `compare`."""
        self._in_place.append((member, form))

    def logits(self, member: Member) -> RowOutput:
        """[n, labels] float32, one row a sequence."""
        return self._logits.add(member.places)

    def token_logits(self, member: Member) -> RowOutput:
        """[.., labels] float32, one row a kept token."""
        return self._token_logits.add(self._kept_rows(member))

    def sparse(self, member: Member, top_k: int = 0) -> SparseShare:
        """Sparse vectors, one a sequence; the `top_k` largest weights of each, 0 for all."""
        return self._sparse.setdefault(top_k, SparseGroup(top_k)).add(member)

    def stage(self, staging: Upload) -> None:
        """Settles, once all jobs have asked, what is computed and in which order."""
        for plan in (self._plan_dense, self._plan_tokens, self._plan_logits, self._plan_sparse):
            plan(staging)

    # On the device.

    def launch(self, hidden: Tensor, shipment: StepDownload) -> None:
        """Makes all outputs of hidden [T, H]."""
        self._shipment = shipment
        self._whole = shipment.add(self._kernels.finite(hidden))
        runs = list(self._runs)
        self._runs.clear()  # they know us: a circle would keep the step's tensors until a full garbage collection
        for run in runs:
            run(hidden, shipment)

    @property
    def placed(self) -> Tensor:
        """[T, W] float32 token vectors of the whole batch, for what is compared in place."""
        assert self._placed is not None
        return self._placed

    def compare(self, queries: Tensor, lengths: Counts, documents: Member, layout: Layout) -> Comparing:
        """MaxSim of queries, rows [sum of lengths, W] end to end, with a member's sequences, read in place."""
        return self._comparisons.add(queries, lengths, self.texts_of(documents), layout)

    def launch_comparisons(self, shipment: StepDownload) -> None:
        """Computes all that jobs asked to compare, at once."""
        if self._comparisons:
            self._comparisons.launch(self.placed, self.kept_mask(), shipment)

    def texts_of(self, member: Member) -> Texts:
        """Where a member's sequences lie in the batch."""
        offsets = self._batch.offsets
        return Texts(starts=offsets[member.places], lengths=np.diff(offsets)[member.places])

    def kept_mask(self) -> Mask | None:
        """[T] which tokens of the batch have a vector; None where all have."""
        if all(member.sequences.kept.all() for member, _ in self._in_place):
            return None
        mask: Mask = np.ones(self._batch.total, dtype=np.bool_)
        for member, _ in self._in_place:
            mask[self._batch.rows_of(member.places)] = member.sequences.kept_of(member.chosen)
        return mask

    # On the host again.

    def finite(self, member: Member) -> bool:
        """Whether the model gave numbers for all of a member's tokens."""
        return bool(self._finite[member.places].all())

    @cached_property
    def _finite(self) -> Mask:
        """[S] of each sequence of the batch."""
        assert self._shipment is not None
        assert self._whole is not None
        found: Mask = np.logical_and.reduceat(self._shipment.arrays[self._whole], self._batch.offsets[:-1])
        return found

    def _kept_rows(self, member: Member) -> Counts:
        """Rows of the batch whose token has a vector, one sequence after the other."""
        return self._batch.rows_of(member.places)[member.sequences.kept_of(member.chosen)]

    def _plan_dense(self, staging: Upload) -> None:
        """All forms are pooled in one go, each a range of rows."""
        head, groups = self._heads.dense, list(self._dense.values())
        if not groups:
            return
        assert head is not None
        places = np.concatenate([group.index for group in groups])
        skip = np.concatenate([each for form in self._dense for each in self._skips[form]])
        offsets = self._batch.offsets
        pooled = head.plan(offsets[places], np.diff(offsets)[places], skip, staging)
        counts = [len(group) for group in groups]

        def run(hidden: Tensor, shipment: StepDownload) -> None:
            rows = pooled(hidden)
            for group, own in zip(groups, rows.split(counts) if len(groups) > 1 else [rows], strict=True):
                group.finish(own, shipment)

        self._runs.append(run)

    def _plan_tokens(self, staging: Upload) -> None:
        """One projection of all rows; those that travel are gathered, documents that are compared stay in place."""
        head, groups = self._heads.multi_vector, list(self._tokens.values())
        if not groups and not self._in_place:
            return
        assert head is not None
        picks = [_Pick(group.index, self._batch.total, staging) for group in groups]
        place = self._plan_places(staging) if self._in_place else None

        def run(hidden: Tensor, shipment: StepDownload) -> None:
            rows = head(hidden)
            for group, pick in zip(groups, picks, strict=True):
                group.finish(rows, shipment, pick.index)
            if place is not None:
                self._placed = place(rows)

        self._runs.append(run)

    def _plan_places(self, staging: Upload) -> Callable[[Tensor], Tensor]:
        """Cuts and normalises rows of the batch where they lie, as the jobs want that compare them."""
        forms = {form for _, form in self._in_place}
        if len(forms) == 1:
            (only,) = forms
            return lambda rows: self._kernels.finished(rows, None, only.dimensions, only.unit)
        assert not any(form.dimensions for form in forms)
        unit = np.ones(self._batch.total, dtype=np.bool_)
        for member, form in self._in_place:
            unit[self._batch.rows_of(member.places)] = form.unit
        wanted = staging.add(unit)
        return lambda rows: torch.where(wanted.tensor[:, None], F.normalize(rows.float(), dim=1), rows)

    def _plan_logits(self, staging: Upload) -> None:
        if self._logits.asked:
            assert self._heads.classifier is not None
            classify = self._heads.classifier.plan(self._batch, self._logits.index, staging)
            self._runs.append(lambda hidden, shipment: self._ship_logits(self._logits, classify(hidden), shipment))
        if self._token_logits.asked:
            head = self._heads.token_classifier
            assert head is not None
            pick = _Pick(self._token_logits.index, self._batch.total, staging)
            self._runs.append(
                lambda hidden, shipment: self._ship_logits(self._token_logits, head(pick(hidden)), shipment)
            )

    @staticmethod
    def _ship_logits(group: RowGroup, logits: Tensor, shipment: StepDownload) -> None:
        group.ship(logits, torch.isfinite(logits.sum(dim=1)), shipment)

    def _plan_sparse(self, staging: Upload) -> None:
        """Of those jobs only that want it: the logits of a vocabulary are the dearest of all outputs."""
        groups = list(self._sparse.values())
        if not groups:
            return
        head, batch = self._heads.sparse, self._batch
        places = np.concatenate([group.places for group in groups])
        counts = [len(group.places) for group in groups]
        lengths = np.diff(batch.offsets)[places]
        pick = _Pick(batch.rows_of(places), batch.total, staging)
        if isinstance(head, LexicalHead):
            tokens = [int(own.sum()) for own in np.split(lengths, np.cumsum(counts)[:-1])]
            self._runs.append(lambda hidden, shipment: self._lexical(head, groups, tokens, pick(hidden), shipment))
            return
        assert isinstance(head, SpladeHead)
        segments = staging.add(np.repeat(np.arange(len(places)), lengths))

        def run(hidden: Tensor, shipment: StepDownload) -> None:
            weights = head(pick(hidden), segments.tensor, len(places))
            for group, own in zip(groups, weights.split(counts), strict=True):
                group.ship_rows(own, shipment)

        self._runs.append(run)

    def _lexical(
        self, head: LexicalHead, groups: list[SparseGroup], tokens: list[int], rows: Tensor, shipment: StepDownload
    ) -> None:
        for group, own in zip(groups, head(rows).split(tokens), strict=True):
            group.ship_tokens(own, self._dropped, shipment)


class _Pick:
    """Rows of a tensor [T, W] in an order of their own; the tensor itself where that is all of them, in order."""

    def __init__(self, index: Counts, total: int, staging: Upload) -> None:
        whole = len(index) == total and bool((index == np.arange(total)).all())
        self._index: Staged | None = None if whole else staging.add(index)

    @property
    def index(self) -> Tensor | None:
        """[n] on the device; None: all, in order."""
        return None if self._index is None else self._index.tensor

    def __call__(self, rows: Tensor) -> Tensor:
        return rows if self._index is None else rows.index_select(0, self._index.tensor)
