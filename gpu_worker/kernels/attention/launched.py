"""Attention by a kernel that takes packed sequences, launched once for each span of a batch."""

import torch
from torch import Tensor

from gpu_worker.kernels.attention.equal_runs import EqualRuns, Ways
from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.ragged.batch import RaggedBatch, Span


class LaunchedAttention:
    """A kernel of CUDA, in half precision: no softcap, no bias.

    Such kernels line up the last query with the last key that counts, so causal layers and windows with keys that do
    not count run as equal runs, and so do chunks. A batch is read by its spans alone, so layers can be compiled.
    """

    name: str
    capturable = True

    def __init__(self) -> None:
        self._lined_up = EqualRuns(Ways())

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        assert terms.softcap is None
        assert terms.bias is None
        tails = any(span.keys is not None for span in batch.spans)
        if terms.chunk is not None or (tails and (terms.causal or terms.window is not None)):
            return self._lined_up(query, key, value, batch, terms)
        q, k, v = (each.transpose(0, 1) for each in (query, key, value))
        if len(batch.spans) == 1:
            return self.launch(q, k, v, k, v, batch.spans[0], terms)
        rows = [slice(span.start, span.stop) for span in batch.spans]
        return torch.cat(
            [
                self.launch(q[own], k[own], v[own], k, v, span, terms)
                for span, own in zip(batch.spans, rows, strict=True)
            ]
        )

    def launch(
        self, q: Tensor, k: Tensor, v: Tensor, all_k: Tensor, all_v: Tensor, span: Span, terms: AttentionTerms
    ) -> Tensor:
        """q, k, v [t, H, D] of a span's tokens; `all_k`, `all_v` [T, H, D] of the batch's -> [t, H, D]."""
        raise NotImplementedError


def reach(terms: AttentionTerms) -> tuple[int, int]:
    """How many tokens to the left and to the right a token sees, as FlashAttention has it; -1 for no bound."""
    left = -1 if terms.window is None else terms.window - 1
    return left, 0 if terms.causal else left
