"""A step: what it computes of all jobs, packed into one batch, and the texts that end in it. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.engine.step.sequences import PackedSequences, Selection
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import Piece
from gpu_worker.ragged.texts import PackedTexts
from gpu_worker.ragged.token_types import Counts, TokenTypes
from gpu_worker.ragged.upload import Upload

NOTHING = PackedTexts(lengths=(), offsets=np.zeros(1, dtype=np.int64), tokens=np.zeros(0, dtype=np.int64))
"""The texts of a step in which none ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step computes, in one batch: whole sequences, sorted by length and then by unattended tail, then pieces.

    `batch` is None where no job has a sequence in the step. `texts` are those that end in the step, each of them whole:
    first the whole sequences, where they lie in the batch, then those that end with a piece. `packed`: the sequences of
    each job slice that end in the step, and their places among `texts`.
    """

    batch: RaggedBatch | None
    texts: PackedTexts
    packed: list[PackedSequences]

    @classmethod
    def pack(
        cls,
        selections: Sequence[Selection],
        device: torch.device,
        uncounted: int | None,
        types: TokenTypes | None,
        upload: Upload,
    ) -> "Step":
        """Packs what the step computes of each job slice. `uncounted`, `types`, `upload`: see `RaggedBatch.pack`."""
        chosen = [(selection.sequences, selection.numbers[selection.whole]) for selection in selections]
        texts = [sequences.ids_of(number) for sequences, numbers in chosen for number in numbers.tolist()]
        seconds = np.concatenate([sequences.second_segments[numbers] for sequences, numbers in chosen])
        tails = np.concatenate([sequences.tails[numbers] for sequences, numbers in chosen])
        lengths = np.concatenate([sequences.lengths[numbers] for sequences, numbers in chosen])
        order = np.lexsort((tails, lengths))
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        ends = np.cumsum([len(numbers) for _, numbers in chosen])
        pieces = [piece for selection in selections for piece in selection.pieces()]
        pieces.sort(key=lambda piece: piece.start > 0)  # the batch wants those that begin a sequence first
        last_pieces = [piece for piece in pieces if piece.last]
        packed = [
            _packed(selection, slice_places, len(order), last_pieces)
            for selection, slice_places in zip(selections, np.split(places, ends[:-1]), strict=True)
        ]
        if not texts and not pieces:
            return cls(batch=None, texts=NOTHING, packed=packed)
        batch = RaggedBatch.pack(
            [texts[place] for place in order.tolist()],
            device,
            uncounted,
            types=types,
            second_segments=seconds[order].tolist(),
            tails=tails[order].tolist(),
            pieces=pieces,
            upload=upload,
        )
        ended_texts = batch.first(len(order), *(piece.sequence for piece in last_pieces)) if pieces else batch
        return cls(batch=batch, texts=ended_texts, packed=packed)

    def hidden_of_texts(self, hidden: Tensor) -> Tensor:
        """Makes the hidden states of `texts` from those of the batch [T, H]. Those of a piece are kept in the cache of
        its text until the text ends."""
        assert self.batch is not None
        if not self.batch.pieces:
            return hidden
        of_ended = []
        for piece, rows in zip(self.batch.pieces, self.batch.piece_rows(), strict=True):
            piece.cache.add_hidden(piece.start, hidden[rows])
            of_ended += [piece.cache.hidden] if piece.last else []
        first = self.batch.offsets[len(self.batch.lengths) - len(self.batch.pieces)]
        return torch.cat([hidden[:first], *of_ended])


def _packed(selection: Selection, whole_places: Counts, first_place: int, last_pieces: list[Piece]) -> PackedSequences:
    """The sequences of a job slice that end in the step, with their places among its texts: whole ones at
    `whole_places`, those that end with a piece from `first_place` on, in the order of `last_pieces`."""
    whole, ended = selection.whole, selection.ended
    places = np.zeros(len(selection.numbers), dtype=np.int64)
    places[whole] = whole_places
    place_of = {piece.cache: place for place, piece in enumerate(last_pieces, first_place)}
    places[ended & ~whole] = [place_of[piece.cache] for piece in selection.pieces() if piece.last]
    return PackedSequences(sequences=selection.sequences, numbers=selection.numbers[ended], places=places[ended])
