"""The encoder's own pooler, which no output is made of: heads that want one run it on the rows that they read."""

from typing import Any

from torch import Tensor, nn


class UnusedPooler(nn.Module):
    """Takes the place of a pooler, and returns the hidden states that it is called with."""

    def forward(self, hidden: Tensor, *_: object, **__: object) -> Tensor:
        """Returns its input, whatever its shape."""
        return hidden


def leave_out_pooler(base: Any) -> None:
    """Has an encoder of transformers run without its pooler (BERT and its kin: a product and a tanh of the step's first
    token), in place. Heads that were built keep theirs."""
    pooler = getattr(base, "pooler", None)
    if isinstance(pooler, nn.Linear) or type(pooler).__name__.endswith("Pooler"):
        base.pooler = UnusedPooler()
