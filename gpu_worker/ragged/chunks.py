"""Where sequences of a packed batch begin, for layers that keep a state from token to token: which tokens of a chunk
belong together, and where a state goes on into the next chunk. Tensors without I/O."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.ragged.texts import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """T tokens cut into N chunks of `size` tokens, wherever sequences begin; the last chunk is filled up.

    On the device, bool: `pairs` [N, size, size], whether token i of a chunk may read token j: of its own sequence, and
    not later. `enters` [N, size], whether a token's sequence began in an earlier chunk; `leaves` [N, size], whether the
    sequence is that of the chunk's last token. On the host, by chunk: `reads`, whether a sequence goes on into it from
    the chunk before; `passes`, whether that one goes on to its last token.
    """

    size: int
    tokens: int
    pairs: Tensor
    enters: Tensor
    leaves: Tensor
    reads: tuple[bool, ...]
    passes: tuple[bool, ...]

    @property
    def count(self) -> int:
        """N, the number of chunks."""
        return len(self.reads)

    @classmethod
    def of(cls, offsets: Counts, size: int, device: torch.device) -> "Chunks":
        """Cuts the batch whose sequences begin at `offsets` [S + 1], the last of which is T."""
        tokens, sequences = int(offsets[-1]), len(offsets) - 1
        count = -(-tokens // size)
        numbers = np.full(count * size, sequences, dtype=np.int64)
        numbers[:tokens] = np.arange(sequences).repeat(np.diff(offsets))
        by_chunk = numbers.reshape(count, size)
        reads = np.concatenate([[False], by_chunk[1:, 0] == by_chunk[:-1, -1]])
        sequence = torch.from_numpy(by_chunk).to(device)
        same = sequence[:, :, None] == sequence[:, None, :]
        return cls(
            size=size,
            tokens=tokens,
            pairs=same.tril(),
            enters=same[:, :, 0] & torch.from_numpy(reads).to(device)[:, None],
            leaves=same[:, -1],
            reads=tuple(reads.tolist()),
            passes=tuple((reads & (by_chunk[:, 0] == by_chunk[:, -1])).tolist()),
        )

    def filled(self, rows: Tensor) -> Tensor:
        """Cuts rows [T, ...] into chunks [N, size, ...]; the last one is filled with zeros."""
        chunks = rows.new_zeros(self.count, self.size, *rows.shape[1:])
        chunks.flatten(0, 1)[: self.tokens] = rows
        return chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginnings:
    """The first tokens of each sequence, `reach` of them or as many as it has. On the device, int64: `rows` [S, reach],
    their places in the batch, where a short sequence repeats the last place; `numbers` [F], the entries of the
    flattened `rows` that belong to their sequences; `places` [F], these entries."""

    rows: Tensor
    numbers: Tensor
    places: Tensor

    @classmethod
    def of(cls, offsets: Counts, reach: int, device: torch.device) -> "Beginnings":
        """Finds the first tokens of the sequences that begin at `offsets` [S + 1]."""
        rows = offsets[:-1, None] + np.arange(reach)
        numbers = np.flatnonzero(rows < offsets[1:, None])
        places = rows.ravel()[numbers]
        rows = rows.clip(max=offsets[-1] - 1)
        tensors = [torch.from_numpy(array).to(device) for array in (rows, numbers, places)]
        return cls(rows=tensors[0], numbers=tensors[1], places=tensors[2])
