"""A text's numbers do not depend on its batch mates: every output of every family, through the engine."""

from collections.abc import Sequence

import numpy as np
import parity
import pytest
import torch.nn.functional as F
from parity import Tables, Texts
from tiny import random_ids
from torch import Tensor

from gpu_worker.engine import ModelEngine

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTH = 37
TEXT = random_ids([LENGTH], seed=1)[0]
MATES = {
    "shorter": random_ids(np.random.default_rng(2).integers(1, LENGTH, 63).tolist(), seed=2),
    "as long": random_ids([LENGTH] * 63, seed=3),
    "longer": random_ids(np.random.default_rng(4).integers(LENGTH + 1, 120, 63).tolist(), seed=4),
}
"""A step is sorted by length, so the text lies behind, among, or in front of these."""


def numbers(engine: ModelEngine, output: str, texts: Sequence[Sequence[int]], place: int) -> Tensor:
    """Of the text at `place`; the others travel in the same step, in jobs of their own and in the text's."""
    cell = Texts(ids=[list(text) for text in texts], seconds=[0] * len(texts))
    return parity.ours(engine, output, cell)[place]


def scaled(numbers: Tensor, output: str) -> Tensor:
    """Vectors of unit length; logits in parts of what they are."""
    if output in ("vectors", "splade"):
        return F.normalize(numbers.view(-1, 64 if output == "vectors" else len(numbers)), dim=1)
    return numbers / numbers.abs().clamp(min=1)


@pytest.mark.parametrize(("name", "output"), parity.TABLE)
def test_numbers_are_the_same_whatever_their_batch_mates(tables: Tables, name: str, output: str) -> None:
    """Alone, with one other, with 63 others; first and last: within 1e-6."""
    engine = tables.engine(name, output, "float32")
    alone = scaled(numbers(engine, output, [TEXT], 0), output)
    for mates in (MATES["as long"][:1], *MATES.values()):
        for place in (0, len(mates)):
            found = numbers(engine, output, [*mates[:place], TEXT, *mates[place:]], place)
            assert (scaled(found, output) - alone).abs().max() <= 1e-6
