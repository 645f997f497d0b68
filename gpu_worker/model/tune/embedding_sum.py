"""Hidden states as the sum of rows of a few tables, normalised: the embeddings of BERT and its kin (arXiv:1810.04805).

Their own code makes token types that nobody asked for and calls a module for each table: for 16 tokens it takes twice
as long as the sum. It is recognised by what it called: tables, and a normalisation of their sum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.model.tune.module_calls import ModuleCall, maker_of


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows [rows, H] of a table, and the name of the input [1, T] that picks them."""

    rows: Tensor
    picked_by: str

    def of(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return F.embedding(inputs[self.picked_by], self.rows)


@dataclass(frozen=True, slots=True)
class EmbeddingSum:
    """The sum of `terms`, tables and rows [H] that all tokens have, in this order, and what normalises it."""

    terms: Sequence[_Table | Tensor]
    norm: nn.Module

    @classmethod
    def of(cls, maker: ModuleCall, calls: Sequence[ModuleCall], inputs: Mapping[str, Tensor]) -> "EmbeddingSum":
        """What `maker`, one of the recorded `calls`, did with the model's `inputs`. Raises ValueError where that is no
        such sum; the caller compares what it gives."""
        inner = set(maker.module.modules()) - {maker.module}
        within = [call for call in calls if call.module in inner]
        norms = [call for call in within if isinstance(call.module, nn.LayerNorm)]
        tables = [call for call in within if type(call.module) is nn.Embedding]
        if len(norms) != 1 or maker_of(norms[0].output, calls) is not maker or not tables:
            raise ValueError("it is no normalised sum of tables")
        return cls([_term(call, inputs) for call in tables], norms[0].module)

    def make(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Hidden states [1, T, H] of a run with these inputs."""
        first, *others = (term.of(inputs) if isinstance(term, _Table) else term for term in self.terms)
        for term in others:
            first = first + term
        states: Tensor = self.norm(first)
        return states


def _term(call: ModuleCall, inputs: Mapping[str, Tensor]) -> _Table | Tensor:
    """Tells what a table adds to the sum. Raises ValueError where other runs do not have what picks its rows."""
    (index,), rows = call.arguments, cast(nn.Embedding, call.module).weight
    for name, tensor in inputs.items():
        if index is tensor:
            return _Table(rows, name)
    if (index == index.flatten()[0]).all():
        return rows[index.flatten()[0]]
    raise ValueError("a table is picked by something else than the model's inputs")
