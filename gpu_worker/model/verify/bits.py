"""The gate of `--same-bits`: the probes' rows must have the same bits alone and among others, in any order.

Operators have a fixed order by construction; the gate finds foreign code that mixes texts in ways nobody thought of.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.sparse import SpladeHead
from gpu_worker.model.verify.probes import Probes
from gpu_worker.ragged.batch import RaggedBatch
from shared.errors import ModelRefused

Rows = Mapping[str, Sequence[Tensor]]
"""Rows of each text of a batch, by the name of what made them."""
Make = Callable[[Tensor, RaggedBatch], Rows]
"""Makes rows of hidden states [T, H]."""


def check(encoder: Encoder, probes: Probes, make: Make | None = None) -> None:
    """Raises ModelRefused, with figures, where rows of a text differ alone and in a batch.

    `make`: what is compared, by default the hidden states.
    """
    numbers = list(range(len(probes.texts)))
    make = make or _hidden_states
    with torch.inference_mode():
        alone = [_run(encoder, probes, [number], make) for number in numbers]
        for chosen in (numbers, numbers[::-2], numbers[-2::-2]):
            together = _run(encoder, probes, chosen, make)
            for place, number in enumerate(chosen):
                _compare(alone[number], together, place)


def check_heads(encoder: Encoder, heads: Heads, probes: Probes, order: AbstractContextManager[object]) -> None:
    """Raises ModelRefused where a head's rows of a text differ alone and in a batch. Heads run inside of `order`."""

    def make(hidden: Tensor, batch: RaggedBatch) -> Rows:
        with order:
            return _head_rows(heads, hidden, batch)

    check(encoder, probes, make)


def _run(encoder: Encoder, probes: Probes, numbers: Sequence[int], make: Make) -> Rows:
    """Rows of the texts of these numbers, which form a batch in this order."""
    batch = probes.batch(numbers, encoder)
    return make(encoder(batch), batch)


def _hidden_states(hidden: Tensor, batch: RaggedBatch) -> Rows:
    return {"hidden states": hidden.split(batch.lengths)}


def _head_rows(heads: Heads, hidden: Tensor, batch: RaggedBatch) -> Rows:
    """Rows of all heads that a model has."""
    rows: dict[str, Sequence[Tensor]] = {}
    if heads.dense is not None:
        rows["vectors"] = heads.dense(hidden, batch).split(1)
    if heads.multi_vector is not None:
        rows["token vectors"] = heads.multi_vector(hidden).split(batch.lengths)
    if isinstance(heads.sparse, SpladeHead):
        texts = np.repeat(np.arange(len(batch.lengths)), batch.lengths)
        rows["sparse weights"] = heads.sparse(hidden, torch.from_numpy(texts), len(batch.lengths)).split(1)
    elif heads.sparse is not None:
        rows["sparse weights"] = heads.sparse(hidden).split(batch.lengths)
    if heads.classifier is not None:
        rows["logits"] = heads.classifier(hidden, batch).split(1)
    if heads.token_classifier is not None:
        rows["logits of tokens"] = heads.token_classifier(hidden).split(batch.lengths)
    return rows


def _compare(alone: Rows, together: Rows, place: int) -> None:
    for name, (expected,) in alone.items():
        rows = together[name][place]
        if not torch.equal(rows, expected):
            distance = float((rows.float() - expected.float()).abs().max())
            raise ModelRefused(f"its {name} differ alone and among others by up to {distance:.2g}")
