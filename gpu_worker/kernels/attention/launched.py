"""Attention by a CUDA kernel for packed sequences, launched once for each span of a batch."""

from functools import lru_cache

import torch
from torch import Tensor

from gpu_worker.kernels.attention.equal_runs import EqualRuns
from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.followers import Followers
from gpu_worker.ragged.spans import Span


class SpanAttention:
    """Base of the CUDA kernels in half precision, which have no softcap and no bias.

    These kernels line up the last query with the last key that counts. So causal layers and windows run as equal runs
    where some keys do not count, and so do chunks. A batch is read only by its spans, so layers can be compiled.
    """

    name: str
    capturable = True

    def __init__(self) -> None:
        self._equal_runs = EqualRuns()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, batch: RaggedBatch, terms: AttentionTerms) -> Tensor:
        assert terms.softcap is None
        assert terms.bias is None
        tails = any(span.keys is not None for span in batch.spans)
        if terms.chunk is not None or (tails and (terms.causal or terms.window is not None)):
            return self._equal_runs(query, key, value, batch, terms)
        q, k, v = (states.transpose(0, 1) for states in (query, key, value))
        if len(batch.spans) == 1:
            return self.attend_span(q, k, v, k, v, batch.spans[0], terms)
        rows = [slice(span.start, span.stop) for span in batch.spans]
        return torch.cat(
            [
                self.attend_span(q[tokens], k[tokens], v[tokens], k, v, span, terms)
                for span, tokens in zip(batch.spans, rows, strict=True)
            ]
        )

    def attend_piece(
        self, query: Tensor, key: Tensor, value: Tensor, terms: AttentionTerms, dropped: int = 0
    ) -> Tensor:
        """See `PackedAttention`: the kernels line up the last query with the last key, as pieces do, and count windows
        from there, so that dropped keys are nothing to them."""
        assert terms.softcap is None
        assert terms.bias is None
        if terms.chunk is not None:
            return self._equal_runs.attend_piece(query, key, value, terms, dropped)
        q, k, v = (states.transpose(0, 1) for states in (query, key, value))
        return self.attend_keys(q, k, v, terms)

    def attend_followers(
        self, query: Tensor, key: Tensor, value: Tensor, followers: Followers, terms: AttentionTerms
    ) -> Tensor:
        """See `PackedAttention`: one launch, with the keys of all followers laid end to end."""
        assert terms.softcap is None
        assert terms.bias is None
        if terms.chunk is not None:
            return self._equal_runs.attend_followers(query, key, value, followers, terms)
        k, v = (states.index_select(1, followers.rows).transpose(0, 1) for states in (key, value))
        return self.attend_texts(query.transpose(0, 1), k, v, followers, terms)

    def attend_texts(self, q: Tensor, k: Tensor, v: Tensor, followers: Followers, terms: AttentionTerms) -> Tensor:
        """Launches the kernel for followers: q [n, H, D], their own tokens; k and v [R, Hkv, D], all their tokens ->
        [n, H, D]."""
        raise NotImplementedError

    def attend_keys(self, q: Tensor, k: Tensor, v: Tensor, terms: AttentionTerms) -> Tensor:
        """Launches the kernel: q [n, H, D], the last tokens of k and v [K, Hkv, D] -> [n, H, D]."""
        raise NotImplementedError

    def attend_span(
        self, q: Tensor, k: Tensor, v: Tensor, all_k: Tensor, all_v: Tensor, span: Span, terms: AttentionTerms
    ) -> Tensor:
        """Launches the kernel: q, k, v [t, H, D] of a span, `all_k`, `all_v` [T, H, D] of the batch -> [t, H, D]."""
        raise NotImplementedError


@lru_cache(maxsize=64)  # every layer of a run asks for the same
def ends(count: int, device: torch.device) -> Tensor:
    """Where the only sequence of a launch begins and ends: [0, count] int32, made on the device without a wait."""
    return torch.arange(2, dtype=torch.int32, device=device) * count


def reach(terms: AttentionTerms) -> tuple[int, int]:
    """The numbers of tokens that a token sees to its left and right, in FlashAttention's form; -1 for no bound."""
    left = -1 if terms.window is None else terms.window - 1
    return left, 0 if terms.causal else left
