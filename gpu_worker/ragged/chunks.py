"""Where sequences of a packed batch begin, for layers that keep a state from token to token: which tokens of a chunk
belong together, and where a state goes on into the next chunk. Tensors without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.ragged.texts import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """T tokens cut into N chunks of `size` tokens, wherever sequences begin; the last chunk is filled up. A piece of a
    sequence has whole chunks of its own, filled up with zeros, which change no state: what enters its first chunk and
    leaves its last one is kept from piece to piece.

    On the device, bool: `pairs` [N, size, size], whether token i of a chunk may read token j: of its own sequence, and
    not later. `enters` [N, size], whether a token's sequence began in an earlier chunk; `leaves` [N, size], whether the
    sequence is that of the chunk's last token. `places` [T], int64: the tokens' places in all chunks; None where these
    are their own numbers. On the host, by chunk: `reads`, whether a sequence goes on into it from the chunk before, or
    from an earlier piece; `passes`, whether that one goes on to its last token. `first` and `last`: the number of the
    piece whose first or last chunk this is, by chunk.
    """

    size: int
    tokens: int
    pairs: Tensor
    enters: Tensor
    leaves: Tensor
    places: Tensor | None
    reads: tuple[bool, ...]
    passes: tuple[bool, ...]
    first: dict[int, int]
    last: dict[int, int]

    @property
    def count(self) -> int:
        """N, the number of chunks."""
        return len(self.reads)

    @classmethod
    def of(cls, offsets: Counts, size: int, device: torch.device, pieces: Sequence[bool] = ()) -> "Chunks":
        """Cuts the batch whose sequences begin at `offsets` [S + 1], the last of which is T. The last sequences are
        `pieces`: whether each goes on from an earlier piece."""
        tokens, sequences = int(offsets[-1]), len(offsets) - 1
        whole = sequences - len(pieces)
        sizes = np.append(offsets[whole], np.diff(offsets)[whole:])  # of the whole sequences, and of each piece
        bounds = np.concatenate([[0], np.cumsum(-(-sizes // size))])  # in chunks
        count = int(bounds[-1])
        numbers = np.full((count, size), sequences, dtype=np.int64)
        numbers.ravel()[: sizes[0]] = np.arange(whole).repeat(np.diff(offsets)[:whole])
        numbers[bounds[1] :] = np.arange(whole, sequences).repeat(np.diff(bounds)[1:])[:, None]
        begins = np.append(0, offsets[whole:-1])
        places = np.arange(tokens) + (bounds[:-1] * size - begins).repeat(sizes)
        reads = np.concatenate([[False], numbers[1:, 0] == numbers[:-1, -1]])
        reads[bounds[1:-1][np.array(pieces, dtype=bool)]] = True
        sequence = torch.from_numpy(numbers).to(device)
        same = sequence[:, :, None] == sequence[:, None, :]
        return cls(
            size=size,
            tokens=tokens,
            pairs=same.tril(),
            enters=same[:, :, 0] & torch.from_numpy(reads).to(device)[:, None],
            leaves=same[:, -1],
            places=torch.from_numpy(places).to(device) if pieces else None,
            reads=tuple(reads.tolist()),
            passes=tuple((reads & (numbers[:, 0] == numbers[:, -1])).tolist()),
            first={int(chunk): piece for piece, chunk in enumerate(bounds[1:-1])},
            last={int(chunk) - 1: piece for piece, chunk in enumerate(bounds[2:])},
        )

    def filled(self, rows: Tensor) -> Tensor:
        """Cuts rows [T, ...] into chunks [N, size, ...]; the last one is filled with zeros."""
        chunks = rows.new_zeros(self.count, self.size, *rows.shape[1:])
        places = slice(self.tokens) if self.places is None else self.places
        chunks.flatten(0, 1)[places] = rows
        return chunks

    def rows(self, chunks: Tensor) -> Tensor:
        """Takes the rows [T, ...] out of chunks [N, size, ...]."""
        return chunks.flatten(0, 1)[slice(self.tokens) if self.places is None else self.places]


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
