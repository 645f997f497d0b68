"""One vector a text. Tensors without I/O."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from gpu_worker.model.heads.pooling import Pooling, pool
from gpu_worker.ragged.batch import Counts, RaggedBatch
from gpu_worker.ragged.upload import Upload


class DenseHead(nn.Module):
    """Pools token rows and runs the pooled rows through layers, in float32."""

    def __init__(self, poolings: Sequence[str], layers: nn.Sequential, width: int) -> None:
        """`width`: dimensions of what comes out."""
        super().__init__()
        self.poolings, self.layers, self.width = tuple(poolings), layers, width

    def plan(self, starts: Counts, lengths: Counts, skip: Counts, staging: Upload) -> Callable[[Tensor], Tensor]:
        """What makes hidden [T, H] to [n, width] float32, of n texts that lie in a step as `Pooling` has it."""
        pooling = Pooling(starts, lengths, skip, self.poolings, staging)
        return lambda hidden: self.layers(pooling(hidden))

    def forward(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        """hidden [T, H] -> [S, width] float32, of all texts of a batch."""
        output: Tensor = self.layers(pool(hidden, batch, self.poolings))
        return output
