"""Layers of a head over packed rows. Tensors without I/O."""

import torch.nn.functional as F
from torch import Tensor, nn


class Dense(nn.Module):
    """activation(x W^T + b) + residual(x): sentence-transformers' and PyLate's Dense, [N, in] -> [N, out]."""

    def __init__(self, linear: nn.Linear, activation: nn.Module, residual: nn.Module | None) -> None:
        """`residual` maps the input to the summand; None adds nothing."""
        super().__init__()
        self.linear, self.activation, self.residual = linear, activation, residual

    def forward(self, rows: Tensor) -> Tensor:
        output: Tensor = self.activation(self.linear(rows))
        return output if self.residual is None else output + self.residual(rows)


class Unit(nn.Module):
    """Scales rows to unit length; a row of zeros stays."""

    def forward(self, rows: Tensor) -> Tensor:
        return F.normalize(rows, dim=-1)


class CutRows(nn.Module):
    """Keeps the first `width` numbers of each row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, rows: Tensor) -> Tensor:
        return rows[:, : self.width]
