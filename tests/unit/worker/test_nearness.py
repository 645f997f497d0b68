"""The gate of layers that compute float32 otherwise: it sees a difference in every output."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gpu_worker.model.heads.dense import DenseHead
from gpu_worker.model.heads.heads import Heads
from gpu_worker.model.heads.multi_vector import MultiVectorHead
from gpu_worker.model.heads.sparse import LexicalHead, SpladeHead
from gpu_worker.model.verify.gate import ProbeStates
from gpu_worker.model.verify.nearness import ROW, SCORE, VECTOR, Nearness, NearnessGate
from shared.errors import ModelRefused

LENGTHS = [3, 40, 7]
EXACT = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
ENCODER: Any = SimpleNamespace(device=torch.device("cpu"), uncounted=None, dtype=torch.float32)


def test_rows_are_compared_as_they_are_and_at_unit_length() -> None:
    """Relative to a row's largest number; zeros and equal rows differ by nothing."""
    exact = torch.tensor([[3.0, 4.0], [0.0, 0.0], [300.0, 400.0]])
    near = Nearness.of_rows(exact + torch.tensor([[0.0, 0.004], [0.0, 0.0], [0.0, 0.04]]), exact)
    assert near.rows == pytest.approx(1e-3, rel=1e-3)
    assert near.vectors == pytest.approx(12 * 0.004 / 125, rel=1e-2)
    assert Nearness.of_rows(exact, exact) == Nearness()


@pytest.mark.parametrize(
    ("near", "enough"),
    [
        (Nearness(vectors=VECTOR, rows=ROW, scores=SCORE), True),
        (Nearness(vectors=1.1 * VECTOR), False),
        (Nearness(rows=1.1 * ROW), False),
        (Nearness(scores=1.1 * SCORE), False),
        (Nearness.of_scores(torch.tensor([1.0, float("nan")]), torch.ones(2)), False),
        (Nearness() | Nearness.of_rows(torch.full((1, 2), float("nan")), torch.ones(1, 2)), False),
        (
            Nearness.of_rows(torch.ones(1, 2), torch.ones(1, 2)) | Nearness.of_scores(torch.ones(1), torch.zeros(1)),
            False,
        ),
    ],
)
def test_each_limit_counts(near: Nearness, enough: bool) -> None:
    """Half of what README promises, and what is no number is not near."""
    assert near.near_enough is enough


class Amplifying(nn.Module):
    """A head's layer after which only the last digits are left."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows - rows.round(decimals=2)


def gate(
    hidden: Tensor, heads: Heads, logits: tuple[Tensor, Tensor] | None = None, exact: Tensor = EXACT
) -> NearnessGate:
    """A gate whose encoder gives these hidden states, and these logits where a head has any."""
    texts = [np.arange(length, dtype=np.int32) for length in LENGTHS]
    states = ProbeStates(hidden=hidden, exact=exact, reference=exact, numbers=[0, 1, 2], lengths=LENGTHS)
    reference: Any = SimpleNamespace(
        among_others=lambda _: states, padding_noise=0.0, probes=SimpleNamespace(texts=texts)
    )
    head: Any = logits and SimpleNamespace(among_others=lambda *_: logits[0], exact=logits[1])
    return NearnessGate(reference, head, heads)


DENSE = DenseHead(["mean"], nn.Sequential(Amplifying()), 8)
MULTI = MultiVectorHead(nn.Sequential(Amplifying()), 8, skip_first=False, mean=False)
WEIGHTS = nn.Linear(8, 1)
LEXICAL = LexicalHead(nn.Sequential(WEIGHTS))
SPLADE: Any = SpladeHead(nn.Identity(), 8, strategy="max", logs=1)  # type: ignore[arg-type]
with torch.no_grad():
    WEIGHTS.weight.fill_(1000.0)


@pytest.mark.parametrize(
    "heads",
    [Heads(dense=DENSE), Heads(multi_vector=MULTI), Heads(sparse=LEXICAL)],
    ids=["dense", "multi-vector", "lexical"],
)
def test_what_heads_make_of_hidden_states_is_compared(heads: Heads) -> None:
    """Hidden states alone are near enough; a head that amplifies their difference is seen."""
    near, same = EXACT + 2e-7, gate(EXACT, heads).check(ENCODER)
    assert same.near_enough
    gate(near, Heads()).check(ENCODER)
    with pytest.raises(ModelRefused, match="wanted are 5e-06, 1e-05 and 5e-05"):
        gate(near, heads).check(ENCODER)


@pytest.mark.parametrize(
    ("heads", "logits", "refused"),
    [
        (Heads(), EXACT + 4e-5, False),
        (Heads(), EXACT + 6e-5, True),
        (Heads(sparse=SPLADE), EXACT * 1.000004, False),
        (Heads(sparse=SPLADE), EXACT * 1.00002, True),
    ],
)
def test_logits_of_labels_are_scores_and_those_of_a_vocabulary_rows(
    heads: Heads, logits: Tensor, refused: bool
) -> None:
    """Absolute, and relative to a row's largest."""
    judge = gate(EXACT, heads, (logits, EXACT))
    if not refused:
        judge.check(ENCODER)
        return
    with pytest.raises(ModelRefused, match="scores within"):
        judge.check(ENCODER)


def test_hidden_states_are_compared() -> None:
    """Relative to their rows, and each number as the exact gate does, which sees small ones beside a large one."""
    with pytest.raises(ModelRefused, match="unit-length vectors within"):
        gate(EXACT + 5e-5, Heads()).check(ENCODER)
    large, off = EXACT.clone(), EXACT.clone()
    large[:, 0] = off[:, 0] = 100.0
    off[:, 1] += 5e-5
    with pytest.raises(ModelRefused, match="hidden states differ by 5e-05"):
        gate(off, Heads(), exact=large).check(ENCODER)
