"""Weights of vocabulary ids. Tensors without I/O; what becomes of them on the host is in `sparse_vectors.py`."""

import torch
from torch import Tensor, nn

from gpu_worker.model.heads.transformers_head import TransformersHead

CHUNK_ELEMENTS = 16 * 1024 * 1024
"""Logits in memory at once: 64 MiB in float32, whatever the step and the vocabulary."""


class SpladeHead(nn.Module):
    """log(1 + relu(logit)) of a masked-LM head, maximum or sum over a text's tokens (SPLADE, arXiv:2109.10086).

    The logits of all tokens of a step would be gigabytes, so they are made and reduced chunk by chunk. The maximum is
    taken before the logarithm, which changes nothing and saves most of it.
    """

    def __init__(self, head: TransformersHead, vocabulary: int, *, strategy: str, logs: int) -> None:
        """`strategy`: max or sum. `logs`: how often the logarithm is taken, 2 for OpenSearch's (arXiv:2504.14839)."""
        super().__init__()
        self.head, self.vocabulary = head, vocabulary
        self.strategy, self.logs = strategy, logs

    def forward(self, rows: Tensor, segments: Tensor, count: int) -> Tensor:
        """rows [T, H] of N = `count` texts; `segments` [T] tells whose each is -> weights [N, vocabulary] float32."""
        best = rows.new_zeros(count, self.vocabulary, dtype=torch.float32)
        step = max(1, CHUNK_ELEMENTS // self.vocabulary)
        for start in range(0, len(rows), step):
            logits = self.head(rows[None, start : start + step])[0].float()
            texts = segments[start : start + step]
            if self.strategy == "max":  # over zeros, so this is the relu as well
                best.scatter_reduce_(0, texts[:, None].expand_as(logits), logits, reduce="amax")
            else:
                best.index_add_(0, texts, self._log(logits.relu_()))
        return self._log(best) if self.strategy == "max" else best

    def _log(self, weights: Tensor) -> Tensor:
        for _ in range(self.logs):
            weights = weights.log1p_()
        return weights


class LexicalHead(nn.Module):
    """relu of one linear layer: a weight a token (BGE-M3, arXiv:2402.03216)."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [T, H] -> [T] float32."""
        output: Tensor = self.layers(hidden)
        return output.float().relu().squeeze(1)
