"""Weights of vocabulary ids, on the device. Tensors without I/O; `sparse_vectors.py` follows on the host."""

import torch
from torch import Tensor, nn

from gpu_worker.model.heads.transformers_head import TransformersHead

CHUNK_ELEMENTS = 16 * 1024 * 1024
"""Most logits that are in memory at once: 64 MiB in float32, whatever the step and the vocabulary."""


class SpladeHead(nn.Module):
    """log(1 + relu(logit)) of a masked-LM head, maximum or sum over a text's tokens (SPLADE, arXiv:2109.10086).

    The logits of all tokens of a step would take gigabytes, so they are computed and reduced chunk by chunk. The
    maximum is taken before the logarithm: the result is the same, and far fewer logarithms are needed.
    """

    def __init__(self, head: TransformersHead, vocabulary: int, *, strategy: str, logs: int) -> None:
        """`strategy` is max or sum. The logarithm is taken `logs` times: 2 for OpenSearch (arXiv:2504.14839)."""
        super().__init__()
        self.head, self.vocabulary = head, vocabulary
        self.strategy, self.logs = strategy, logs

    def forward(self, rows: Tensor, text_of_row: Tensor, count: int) -> Tensor:
        """Weights [N, vocabulary] float32 of N = `count` texts from rows [T, H] of the texts `text_of_row` [T]."""
        best = rows.new_zeros(count, self.vocabulary, dtype=torch.float32)
        step = max(1, CHUNK_ELEMENTS // self.vocabulary)
        for start in range(0, len(rows), step):
            logits = self.head(rows[None, start : start + step])[0].float()
            texts = text_of_row[start : start + step]
            if self.strategy == "max":  # starts from zeros, so this is the relu as well
                best.scatter_reduce_(0, texts[:, None].expand_as(logits), logits, reduce="amax")
            else:
                best.index_add_(0, texts, self._log(logits.relu_()))
        return self._log(best) if self.strategy == "max" else best

    def _log(self, weights: Tensor) -> Tensor:
        for _ in range(self.logs):
            weights = weights.log1p_()
        return weights


class LexicalHead(nn.Module):
    """One weight a token: the relu of a linear layer (BGE-M3, arXiv:2402.03216)."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, hidden: Tensor) -> Tensor:
        """Weights of tokens: hidden [T, H] -> [T] float32."""
        output: Tensor = self.layers(hidden)
        return output.float().relu().squeeze(1)
