"""The worker's kernels and linear layers in this process, each without a model.

It needs torch, transformers and numpy only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention.choice import choose as choose_attention
from gpu_worker.kernels.attention.interface import AttentionTerms
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.maxsim.maxsim_kernels import Comparison, Texts, choose
from gpu_worker.model.tune.linear import Int8Linear, pack
from gpu_worker.ragged.batch import RaggedBatch
from shared.vectors import Layout


def maxsim(
    query: Tensor, rows: Tensor, lengths: Sequence[int], *, queries: int = 1, kernel_alone: bool = False
) -> Callable[[], Tensor]:
    """Makes the scoring of documents whose rows [N, D] lie end to end, as in a step; it gives scores [S].

    `query` [queries x q, D]: each query is compared with its own share of the documents. `kernel_alone`: on CUDA,
    leave out what the host prepares for the kernel.
    """
    scores: Any = choose(rows.device, rows.shape[1])
    query_texts = Texts.end_to_end(np.full(queries, len(query) // queries))
    all_documents, share = Texts.end_to_end(np.array(lengths)), len(lengths) // queries
    shares = [(query_texts.part(n, n + 1), all_documents.part(n * share, (n + 1) * share)) for n in range(queries)]
    comparisons = [Comparison(queries=part, documents=documents, layout=Layout.MATRIX) for part, documents in shares]
    if kernel_alone and rows.device.type == "cuda":
        prepared: Callable[[], Tensor] = scores.prepared(query, rows, comparisons)
        return prepared
    return lambda: scores(query, rows, comparisons)


def attention(heads: int, head: int, lengths: Sequence[int], place: Placement) -> Callable[[], Tensor]:
    """Makes a layer's attention over texts of these lengths, by the kernel that the worker chooses there."""
    batch = RaggedBatch.pack([np.zeros(length, dtype=np.int32) for length in lengths], place.device)
    drawn = (torch.randn(batch.total, heads, head, device=place.device, dtype=place.dtype) for _ in "qkv")
    query, key, value = (tensor.transpose(0, 1) for tensor in drawn)
    attend = choose_attention(place.device, place.dtype, head, softcap=False, bias=False)
    return lambda: attend(query, key, value, batch, AttentionTerms(scale=head**-0.5))


def formats() -> list[str]:
    """Number formats that this processor's kernels have, the one of eight bits last."""
    kernels = library.load()
    return [*sorted(str(dtype)[6:] for dtype in kernels.formats), *["int8"] * (not kernels.missing)]


def int8_linear(layer: nn.Linear) -> nn.Module:
    """Converts a linear layer to int8, as `--dtype int8` does."""
    return Int8Linear(layer)


def fast_linear(layer: nn.Linear) -> nn.Module:
    """Converts a linear layer to what the worker runs outside of whole layers: with its weight packed."""
    model = nn.Sequential(layer)
    pack(model)
    return model
