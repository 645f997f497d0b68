"""One vector a text. Tensors without I/O."""

from collections.abc import Sequence

from torch import Tensor, nn

from gpu_worker.heads.pooling import pool
from gpu_worker.ragged.batch import Counts, RaggedBatch


class DenseHead(nn.Module):
    """Pools token rows and runs the pooled rows through layers, in float32."""

    def __init__(self, poolings: Sequence[str], layers: nn.Sequential, width: int) -> None:
        """`width`: dimensions of what comes out."""
        super().__init__()
        self.poolings, self.layers, self.width = tuple(poolings), layers, width

    def forward(self, hidden: Tensor, batch: RaggedBatch, skip: Counts | None = None) -> Tensor:
        """hidden [T, H] -> [S, width] float32; `skip` [S] as in `pooling.pool`."""
        output: Tensor = self.layers(pool(hidden, batch, self.poolings, skip))
        return output
