"""What counts when two runs of a model are compared: every output that it has."""

import numpy as np
import pytest
import torch

from gpu_worker.model.loading import load
from gpu_worker.model.verify.final_rows import FinalRows
from gpu_worker.ragged.batch import RaggedBatch
from support.tiny import CPU, random_ids

LENGTHS = (5, 1, 17)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("tiny-bert", [(3, 64)]),
        ("tiny-colbert", [(23, 48)]),
        ("tiny-splade", [(3, 1000)]),
        ("tiny-bge-m3", [(3, 64), (23, 64), (1, 23)]),
        ("tiny-cross-encoder", [(1, 3)]),
        ("tiny-token-classifier", [(1, 23 * 3)]),
    ],
)
def test_every_output_counts(name: str, shapes: list[tuple[int, int]]) -> None:
    """A small change of one text's hidden states takes the cosine down; the same states have 1."""
    model = load(f"random:{name}", CPU)
    texts = [np.array(ids, dtype=np.int32) for ids in random_ids(LENGTHS)]
    batch = RaggedBatch.pack(texts, CPU.device, model.encoder.uncounted, types=model.encoder.token_types)
    with torch.inference_mode():
        hidden = model.encoder(batch)
    rows = FinalRows.of(model.heads, hidden, texts)
    assert [tuple(output.numbers.shape) for output in rows.outputs] == shapes
    assert rows.least_cosine(rows) == pytest.approx(1.0, abs=1e-12)
    for change in (0.1, 1.0):
        other = hidden.clone()
        other[5] += change * torch.randn(64, generator=torch.Generator().manual_seed(0))  # the text of one token
        assert FinalRows.of(model.heads, other, texts).least_cosine(rows) < 1 - 1e-6
    other[5] = torch.nan
    assert FinalRows.of(model.heads, other, texts).least_cosine(rows) == -1.0
