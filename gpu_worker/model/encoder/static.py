"""A static embedding in an encoder's place: the hidden state of a token is its row of a table, in any text.

Pooled by the mean it is an embedding bag (sentence-transformers' StaticEmbedding, model2vec).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.ragged.batch import RaggedBatch


class StaticEncoder(Encoder):
    """Looks up the rows of a batch."""

    description = "static"

    def __init__(self, table: nn.Embedding) -> None:
        """`table`: V rows of W numbers, on the device that looks them up."""
        super().__init__(table, uncounted=None, token_types=None, width=table.embedding_dim)

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """Rows [T, W] of the batch's tokens, in the table's number format."""
        return F.embedding(batch.ids[0], self.model.weight)
