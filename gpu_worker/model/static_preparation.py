"""Makes a static embedding ready to serve: its heads, and the comparison of a batch with PyTorch's embedding bag.

The bag, one text at a time, is what sentence-transformers runs.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model.encoder.static import StaticEncoder
from gpu_worker.model.execution import ExecutionMode
from gpu_worker.model.head_building import HeadBuilder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.pooling import pool
from gpu_worker.model.source import Source
from gpu_worker.model.tune import native_linear
from gpu_worker.model.tuning import Tuned, Verified
from gpu_worker.model.verify.bitwise import reason_for_other_bits
from gpu_worker.model.verify.probes import HEAD_LENGTHS, SHORT_LENGTHS, Probes
from gpu_worker.model.verify.runs import Cutting
from gpu_worker.model.verify.tolerances import Expected, exact_states
from gpu_worker.ragged.batch import RaggedBatch

LONG = 300
"""Tokens of the longest text that is compared."""
WHOLE = "rows of a table are looked up at once"
NO_LINEAR = "none"


def prepare(source: Source) -> tuple[Heads, Tuned, Verified]:
    """Builds the heads and compares. Raises ModelRefused where a text's mean differs alone and among others."""
    table: nn.Embedding = source.model
    encoder = StaticEncoder(table)
    heads = HeadBuilder(source.recipe, table, source.placement, source.layers, encoder.width).build()
    probes = _probes(table.num_embeddings)
    _check_means(encoder, heads, probes)
    native_linear.install(heads.modules(), library.load() if encoder.device.type == "cpu" else KernelLibrary())
    bits = reason_for_other_bits(encoder, heads, probes, cuts=False, shares=False)
    verified = Verified(cutting=Cutting(refusal=WHOLE), unshared=WHOLE, other_bits=bits)
    return heads, Tuned(mode=ExecutionMode(encoder=encoder), linear=NO_LINEAR), verified


def _probes(rows: int) -> Probes:
    """Texts of seeded ids of the whole table, in several lengths."""
    generator = np.random.default_rng(0)
    lengths = (*SHORT_LENGTHS, *HEAD_LENGTHS, LONG)
    texts = tuple(generator.integers(0, rows, length).astype(np.int32) for length in lengths)
    return Probes(texts=texts, tails=(0,) * len(texts))


def _check_means(encoder: StaticEncoder, heads: Heads, probes: Probes) -> None:
    """Raises ModelRefused where means of a batch's rows differ from those of single texts."""
    assert heads.dense is not None
    table: Tensor = encoder.model.weight
    batch = RaggedBatch.pack(list(probes.texts), encoder.device, encoder.uncounted, types=None)
    with torch.inference_mode():
        rows = pool(encoder(batch), batch, heads.dense.poolings)
        ids = [torch.from_numpy(text.astype(np.int64))[None].to(encoder.device) for text in probes.texts]
        exact = torch.cat([F.embedding_bag(text, table.float(), mode="mean") for text in ids])
    verdict = exact_states(rows, Expected(exact=exact, rows=exact), torch.float32)
    verdict.check("its means are not those of single texts")
