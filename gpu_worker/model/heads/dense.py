"""One vector a text. Tensors without I/O."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from gpu_worker.model.heads.pooling import Pooling, pool
from gpu_worker.ragged.batch import Counts, RaggedBatch
from gpu_worker.ragged.upload import Upload


class DenseHead(nn.Module):
    """Pools token rows and runs the pooled rows through layers, in float32."""

    def __init__(self, poolings: Sequence[str], layers: nn.Sequential, width: int) -> None:
        """`width` is the number of dimensions of a vector."""
        super().__init__()
        self.poolings, self.layers, self.width = tuple(poolings), layers, width

    def plan(self, starts: Counts, lengths: Counts, skip: Counts, upload: Upload) -> Callable[[Tensor], Tensor]:
        """Prepares what maps hidden [T, H] to [n, width] float32, for n texts that lie in a step as in `Pooling`."""
        pooling = Pooling(starts, lengths, skip, self.poolings, upload)
        return lambda hidden: self.layers(pooling(hidden))

    def forward(self, hidden: Tensor, batch: RaggedBatch) -> Tensor:
        """hidden [T, H] -> [S, width] float32, of all texts of a batch."""
        output: Tensor = self.layers(pool(hidden, batch, self.poolings))
        return output
