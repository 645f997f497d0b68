"""What the heads make of a step's hidden states: each output once for all jobs that want it, when first asked for.

Cut to the dimensions and to the length that each job wants, without a loop over sequences. No I/O, no wait.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.heads import pooling
from gpu_worker.heads import sparse_vectors as sparse
from gpu_worker.heads.sparse import LexicalHead, SpladeHead
from gpu_worker.heads.sparse_vectors import Reading
from gpu_worker.jobs.texts import Member, TextProgress
from gpu_worker.maxsim.comparison import Mask, MaxSim, Texts
from gpu_worker.model.head_building import Heads
from gpu_worker.ragged.batch import Counts, Ids, row_ranges, to_device
from gpu_worker.step.comparisons import Comparing, Comparisons
from gpu_worker.step.sequences import Step
from gpu_worker.step.shipment import Array, Outbox
from shared.vectors import Layout


class Rows:
    """The outputs of one step."""

    def __init__(self, hidden: Tensor, step: Step, heads: Heads, dropped: Ids, maxsim: MaxSim) -> None:
        """`dropped` are special ids that lexical weights leave out."""
        self._hidden, self._step, self._heads, self._dropped = hidden, step, heads, dropped
        self._comparisons = Comparisons(maxsim)
        self._made: dict[str, Tensor] = {}
        self._sparse_rows: Counts | None = None

    def pooled(self, places: Counts) -> Tensor:
        """[n, W] float32 dense rows of the sequences at these places."""
        return self._take(self._once("dense", self._dense), places)

    def tokens(self, rows: Counts) -> Tensor:
        """[n, W] float32 token vectors at these rows of the batch."""
        return self._take(self.every_token(), rows)

    def every_token(self) -> Tensor:
        """[T, W] the same of the whole batch."""
        return self._once("tokens", self._token_vectors)

    def texts_at(self, places: Counts) -> Texts:
        """Where the sequences at these places lie in the batch."""
        offsets = self._step.batch.offsets
        return Texts(starts=offsets[places], lengths=np.diff(offsets)[places])

    def kept_mask(self) -> Mask | None:
        """[T] which tokens of the batch have a vector; None where all have."""
        if all(progress.kept.all() for progress, _ in self._step.members):
            return None
        mask: Mask = np.ones(self._step.batch.total, dtype=np.bool_)
        for progress, member in self._step.members:
            own = row_ranges(progress.offsets[member.sequences], progress.lengths[member.sequences])
            mask[self.rows_of(member)] = progress.kept[own]
        return mask

    def compare(self, queries: Tensor, lengths: Counts, places: Counts, layout: Layout) -> Comparing:
        """MaxSim of queries, rows [sum of lengths, W] end to end, with the sequences at these places, read in place."""
        return self._comparisons.add(queries, lengths, self.texts_at(places), layout)

    def launch(self, outbox: Outbox) -> None:
        """Computes what all jobs of the step asked to compare."""
        if self._comparisons:
            self._comparisons.launch(self.every_token(), self.kept_mask(), outbox)

    def rows_of(self, member: Member) -> Counts:
        """Rows of the batch that belong to a member, one sequence after the other."""
        return self._step.batch.rows_of(member.places)

    def kept_rows(self, progress: TextProgress, member: Member) -> Counts:
        """Those of them whose token has a vector."""
        own = row_ranges(progress.offsets[member.sequences], progress.lengths[member.sequences])
        return self.rows_of(member)[progress.kept[own]]

    def logits(self, places: Counts) -> Tensor:
        """[n, labels] float32 of the sequences at these places."""
        head = self._heads.classifier
        assert head is not None
        return self._take(self._once("logits", lambda: head(self._hidden, self._step.batch)), places)

    def token_logits(self, rows: Counts) -> Tensor:
        """[n, labels] float32 at these rows of the batch."""
        head = self._heads.token_classifier
        assert head is not None
        return self._take(self._once("token logits", lambda: head(self._hidden)), rows)

    def sparse(self, progress: TextProgress, member: Member, outbox: Outbox, top_k: int = 0) -> Reading:
        """Ships what one member's sparse vectors are made of; they are made on the host."""
        head = self._heads.sparse
        if isinstance(head, LexicalHead):
            return self._lexical(head, progress, member, outbox, top_k)
        assert isinstance(head, SpladeHead)
        weights = self._once("splade", lambda: self._splade(head))
        assert self._sparse_rows is not None
        own = self._take(weights, self._sparse_rows[member.places])
        sound = outbox.add(torch.isfinite(own).all().reshape(1))
        whole = not top_k or top_k >= own.shape[1]
        values, ids = (own, own.new_empty(0)) if whole else own.topk(top_k, dim=1)
        slots = outbox.add(values), outbox.add(ids.int())

        def read(arrays: list[Array]) -> list[sparse.Vector]:
            progress.finite &= bool(arrays[sound][0])
            if whole:
                return [sparse.of_row(row) for row in arrays[slots[0]]]
            pairs = zip(arrays[slots[1]], arrays[slots[0]], strict=True)
            return [sparse.of_pairs(known, weights) for known, weights in pairs]

        return read

    def _once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _dense(self) -> Tensor:
        assert self._heads.dense is not None
        skip = self._each(lambda progress, member: progress.skip[member.sequences])
        rows = self._heads.dense(self._hidden, self._step.batch, skip)
        return self._finished(rows, lambda progress: progress.unit_dense, repeat=None)

    def _token_vectors(self) -> Tensor:
        assert self._heads.multi_vector is not None
        rows = self._heads.multi_vector(self._hidden)
        repeat = np.diff(self._step.batch.offsets)
        return self._finished(rows, lambda progress: progress.unit_tokens, repeat)

    def _splade(self, head: SpladeHead) -> Tensor:
        """Of those jobs only that want it: the logits of a vocabulary are the dearest of all outputs."""
        chosen = [member.places for progress, member in self._step.members if progress.wants_sparse]
        places = np.sort(np.concatenate(chosen))
        self._sparse_rows = np.zeros(len(self._step.batch.lengths), dtype=np.int64)
        self._sparse_rows[places] = np.arange(len(places))
        whole = len(places) == len(self._step.batch.lengths)
        rows = self._hidden if whole else self._take(self._hidden, self._step.batch.rows_of(places))
        return head(rows, np.diff(self._step.batch.offsets)[places])  # type: ignore[no-any-return]

    def _lexical(
        self, head: LexicalHead, progress: TextProgress, member: Member, outbox: Outbox, top_k: int
    ) -> Reading:
        weights = self._once("lexical", lambda: head(self._hidden))
        slot = outbox.add(self._take(weights, self._step.batch.rows_of(member.places)))

        def read(arrays: list[Array]) -> list[sparse.Vector]:
            progress.finite &= bool(np.isfinite(arrays[slot]).all())
            texts = [progress.sequence(each) for each in member.sequences]
            return sparse.of_tokens(texts, np.nan_to_num(arrays[slot]), self._dropped, top_k)

        return read

    def _finished(self, rows: Tensor, unit: Callable[[TextProgress], bool], repeat: Counts | None) -> Tensor:
        width = rows.shape[1]
        kept = self._each(lambda progress, _: progress.dimensions or width)
        wanted = self._each(lambda progress, _: unit(progress))
        if repeat is not None:
            kept, wanted = np.repeat(kept, repeat), np.repeat(wanted, repeat)
        return pooling.normalize(pooling.truncate(rows, kept), wanted.astype(np.bool_))

    def _each(self, value: Callable[[TextProgress, Member], Counts | int]) -> Counts:
        """[S] a number a sequence of the batch."""
        values = np.zeros(len(self._step.batch.lengths), dtype=np.int64)
        for progress, member in self._step.members:
            values[member.places] = value(progress, member)
        return values

    @staticmethod
    def _take(rows: Tensor, index: Counts | Sequence[int]) -> Tensor:
        return rows.index_select(0, to_device(torch.from_numpy(np.asarray(index, dtype=np.int64)), rows.device))
