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
    """What a step computes, in one batch: whole sequences, then pieces. Those of one adapter lie together, sorted by
    length and then by unattended tail.

    `batch` is None where no job has a sequence in the step. `texts` are what outputs are made of: the texts that end in
    the step, each of them whole, first the whole sequences, where they lie in the batch, then those that end with a
    piece; among these also pieces alone, whose outputs are made at once. `packed`: the sequences of each job slice that
    outputs are made of, and their places among `texts`.
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
        whole = [(selection.sequences, selection.numbers[selection.whole]) for selection in selections]
        texts = [sequences.ids_of(number) for sequences, numbers in whole for number in numbers.tolist()]
        seconds = np.concatenate([sequences.second_segments[numbers] for sequences, numbers in whole])
        tails = np.concatenate([sequences.tails[numbers] for sequences, numbers in whole])
        lengths = np.concatenate([sequences.lengths[numbers] for sequences, numbers in whole])
        adapters = np.repeat([sequences.adapter for sequences, _ in whole], [len(numbers) for _, numbers in whole])
        order = np.lexsort((tails, lengths, adapters))
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        ends = np.cumsum([len(numbers) for _, numbers in whole])
        adapted = [(selection.sequences.adapter, piece) for selection in selections for piece in selection.pieces()]
        adapted.sort(key=lambda entry: (entry[1].start > 0, entry[0]))  # the batch wants those that begin a text first
        pieces = [piece for _, piece in adapted]
        shown = [piece for piece in pieces if piece.shown]
        packed = [
            _packed(selection, slice_places, len(order), shown)
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
            adapters=[*adapters[order].tolist(), *(adapter for adapter, _ in adapted)],
            upload=upload,
        )
        whole_texts = batch.first(len(order), *(piece.shown_tokens for piece in shown)) if pieces else batch
        return cls(batch=batch, texts=whole_texts, packed=packed)

    def hidden_of_texts(self, hidden: Tensor) -> Tensor:
        """Hidden states of `texts`, from those of the batch [T, H]. Keeps those of pieces until their text ends, unless
        their outputs are made at once."""
        assert self.batch is not None
        if not self.batch.pieces:
            return hidden
        shown = []
        for piece, rows in zip(self.batch.pieces, self.batch.piece_rows(), strict=True):
            if piece.at_once:
                shown.append(hidden[rows])
                continue
            piece.cache.add_hidden(piece.start, hidden[rows])
            shown += [piece.cache.hidden] if piece.last else []
        first = self.batch.offsets[len(self.batch.lengths) - len(self.batch.pieces)]
        if first or not shown:
            shown = [hidden[:first], *shown]
        return torch.cat(shown) if len(shown) > 1 else shown[0]  # a long text that ends by itself is not copied


def _packed(selection: Selection, whole_places: Counts, first_shown: int, shown: list[Piece]) -> PackedSequences:
    """The sequences of a job slice that outputs are made of: whole ones at `whole_places`, the others, in the order of
    `shown`, from `first_shown` on."""
    whole, chosen = selection.whole, selection.shown
    places = np.zeros(len(selection.numbers), dtype=np.int64)
    places[whole] = whole_places
    place_of = {piece.cache: place for place, piece in enumerate(shown, first_shown)}
    places[chosen & ~whole] = [place_of[piece.cache] for piece in selection.pieces() if piece.shown]
    return PackedSequences(
        sequences=selection.sequences,
        numbers=selection.numbers[chosen],
        places=places[chosen],
        ranges=(selection.starts[chosen], selection.stops[chosen]) if selection.at_once else None,
    )
