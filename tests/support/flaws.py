"""Mistakes that a packed run can make, for negative controls."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
from torch import Tensor

from gpu_worker.device.transfer import Upload
from gpu_worker.kernels.attention.interface import AttentionTerms, OneByOne, PackedAttention, explicit
from gpu_worker.ragged.batch import RaggedBatch


def inside(bias: Callable[[Tensor, Tensor], Tensor], batch: RaggedBatch, query: Tensor, key: Tensor) -> Tensor:
    """The bias [H, T, T] of a batch as one sequence: its own inside each text, none between texts."""
    whole = query.new_zeros(len(query), batch.total, batch.total)
    for start, stop in pairwise(batch.offsets.tolist()):
        whole[:, start:stop, start:stop] = bias(query[:, start:stop], key[:, start:stop])
    return whole


class Flawed(PackedAttention):
    """An attention with one mistake, for negative controls."""

    name = "flawed"
    capturable = False

    def __init__(self, flaw: str) -> None:
        self._flaw = flaw

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        if self._flaw == "mixes sequences":
            if terms.bias is not None:
                terms = replace(terms, bias=partial(inside, terms.bias, batch))
            total = np.array([batch.total])
            batch = replace(batch, lengths=(batch.total,), offsets=np.array([0, batch.total]), attended=total)
        if self._flaw == "attends to tails":
            batch = replace(batch, attended=np.diff(batch.offsets))
        if self._flaw == "flips causality":
            terms = replace(terms, causal=not terms.causal)
        if self._flaw == "ignores the window":
            terms = replace(terms, window=None)
        if self._flaw == "ignores the bias":
            terms = replace(terms, bias=None)
        if self._flaw == "window off by one":
            terms = replace(terms, window=None if terms.window is None else terms.window + 1)
        return OneByOne()(query, key, value, batch, terms)

    def attend_piece(self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms) -> Tensor:
        count, keys = query.shape[1], key.shape[1]
        if self._flaw == "forgets the past":
            key, value = key[:, -count:], value[:, -count:]
        if self._flaw == "upper-left mask":
            return explicit(query, key, value, terms, keys).transpose(0, 1)
        if self._flaw == "windows begin anew":  # at each piece, so that a window reaches all that came before it
            window = None if terms.window is None else terms.window + keys - count
            terms = replace(terms, window=window)
        if self._flaw == "windows of pieces off by one":
            terms = replace(terms, window=None if terms.window is None else terms.window + 1)
        return OneByOne().attend_piece(query, key, value, terms)


def counted_on(batch: RaggedBatch) -> RaggedBatch:
    """The batch with positions that do not start anew in each sequence."""
    upload, rows = Upload(batch.ids.device), batch.uploaded.array.copy()
    rows[1] = np.arange(batch.total) % 600
    uploaded = upload.add_array(rows)
    upload.send()
    return replace(batch, uploaded=uploaded)
