"""A step: what it computes of all jobs, packed into one batch, and the texts that end in it. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device.transfer import Upload
from gpu_worker.engine.step.sequences import PackedSequences, Selection, Sequences
from gpu_worker.engine.step.sharing import NONE_SHARED, SharedTokens, Sharer
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import Piece
from gpu_worker.ragged.texts import Counts, Ids, PackedTexts, TokenTypes, offsets_of

NOTHING = PackedTexts(lengths=(), offsets=np.zeros(1, dtype=np.int64), tokens=np.zeros(0, dtype=np.int64))
"""The texts of a step in which none ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step computes, in one batch: whole sequences, sorted by adapter, length and unattended tail, and behind
    them pieces: of sequences that are longer than a step should be, and of those that begin like another one.

    `batch` is None where no job has a sequence in the step. `texts` are what outputs are made of: the texts that end in
    the step, each of them whole, in the order of the batch. `packed`: the sequences of each job that outputs are made
    of, and their places among `texts`. `shared_tokens`: how many tokens the batch does not have, since another sequence
    has them.
    """

    batch: RaggedBatch | None
    texts: PackedTexts
    packed: list[PackedSequences]
    shared_tokens: int = 0

    @classmethod
    def pack(
        cls,
        selections: Sequence[Selection],
        device: torch.device,
        uncounted: int | None,
        types: TokenTypes | None,
        upload: Upload,
        *,
        shares: bool = False,
    ) -> "Step":
        """Packs what the step computes of each job. `uncounted`, `types`, `upload`: see `RaggedBatch.pack`.

        `shares`: sequences may share first tokens.
        """
        whole = _WholeTexts.of(selections)
        cut = [selection.pieces() for selection in selections]
        pieces = _in_batch_order(selections, cut)
        shared = _shared_tokens(selections, whole, pieces) if shares else NONE_SHARED
        order = whole.order(shared.followers)
        count = len(order) - len(shared.followers)
        alone, followers = order[:count], order[count:]
        ended_caches = [piece.cache for _, piece in pieces if piece.last]
        places = np.empty(len(order), dtype=np.int64)  # among `texts`, of whole sequences
        places[alone] = np.arange(count)
        places[followers] = np.arange(count, len(order)) + len(ended_caches)
        place_of = {cache: place for place, cache in enumerate(ended_caches, count)}
        packed = [
            _packed(selection, places[start:stop], [place_of[piece.cache] for piece in of_job if piece.last])
            for selection, of_job, (start, stop) in zip(selections, cut, pairwise(whole.bounds), strict=True)
        ]
        if not whole.texts and not pieces:
            return cls(batch=None, texts=NOTHING, packed=packed)
        parts = [piece for _, piece in pieces]
        if shared.followers:
            parts += shared.behind(*_begins(whole, alone, parts))
        batch = RaggedBatch.pack(
            [whole.texts[place] for place in alone.tolist()],
            device,
            uncounted,
            types=types,
            second_segments=whole.second_segments[alone].tolist(),
            tails=whole.tails[alone].tolist(),
            pieces=parts,
            adapters=[
                *whole.adapters[alone].tolist(),
                *(sequences.adapter for sequences, _ in pieces),
                *whole.adapters[followers].tolist(),
            ],
            upload=upload,
        )
        texts = batch.first(count, *(piece.sequence for piece in parts if piece.last)) if parts else batch
        return cls(batch=batch, texts=texts, packed=packed, shared_tokens=sum(piece.spared for piece in parts))

    def hidden_of_texts(self, hidden: Tensor) -> Tensor:
        """Collects the hidden states of `texts`, from those of the batch [T, H]. Keeps those of pieces until their text
        ends."""
        batch = self.batch
        assert batch is not None
        if not batch.pieces:
            return hidden
        pieces = list(zip(batch.pieces, batch.piece_rows(), strict=True))
        for piece, rows in pieces:
            piece.keep_hidden(hidden[rows])
        first = pieces[0][1].start
        ended = [slots for piece, rows in pieces if piece.last for slots in piece.slots(rows.start)]
        shown = [(hidden if slots.cache is None else slots.cache.hidden)[slots.rows] for slots in ended]
        if first or not shown:
            shown = [hidden[:first], *shown]
        return torch.cat(shown) if len(shown) > 1 else shown[0]  # a long text that ends by itself is not copied


class _WholeTexts:
    """The n whole sequences of a step, job by job: `texts`, their token ids, and of each what the batch is told.

    Those of job i are `bounds[i]` to `bounds[i + 1]` - 1.
    """

    def __init__(self, texts: list[Ids], bounds: list[int], columns: Counts) -> None:
        """`columns` [4, n]: unattended tails, lengths, adapters and second segments."""
        self.texts, self.bounds, self._columns = texts, bounds, columns
        self.tails, self.lengths, self.adapters, self.second_segments = columns

    @classmethod
    def of(cls, selections: Sequence[Selection]) -> "_WholeTexts":
        """Lays the whole sequences of the selections in one table."""
        chosen = [(selection.sequences, selection.whole_numbers) for selection in selections]
        bounds = [0, *accumulate(len(numbers) for _, numbers in chosen)]
        texts = [sequences.ids_of(number) for sequences, numbers in chosen for number in numbers.tolist()]
        columns = np.empty((4, len(texts)), dtype=np.int64)
        for (sequences, numbers), (start, stop) in zip(chosen, pairwise(bounds), strict=True):
            columns[0, start:stop] = sequences.tails[numbers]
            columns[1, start:stop] = sequences.lengths[numbers]
            columns[2, start:stop] = sequences.adapter
            columns[3, start:stop] = sequences.second_segments[numbers]
        return cls(texts, bounds, columns)

    def order(self, followers: Sequence[int]) -> Counts:
        """Finds the places of all texts in the order of the batch: by adapter, length and tail; last, as they come, the
        `followers`."""
        count = len(self.texts)
        if count < 2:
            return np.arange(count)
        keys = list(self._columns[:3])
        if followers:
            behind = np.zeros(count, dtype=np.int64)
            behind[list(followers)] = np.arange(1, len(followers) + 1)
            keys.append(behind)
        return np.lexsort(keys)


def _in_batch_order(selections: Sequence[Selection], cut: Sequence[Sequence[Piece]]) -> list[tuple[Sequences, Piece]]:
    """The pieces of all jobs, those that begin a sequence first."""
    pieces = [(selection.sequences, piece) for selection, parts in zip(selections, cut, strict=True) for piece in parts]
    pieces.sort(key=lambda entry: (entry[1].start > 0, entry[0].adapter))
    return pieces


def _begins(whole: "_WholeTexts", alone: Counts, pieces: Sequence[Piece]) -> tuple[list[int], int]:
    """Where all whole texts, of which the batch has those at the places `alone`, and then the pieces that begin a
    sequence, begin in the batch; and where all pieces end."""
    begins = np.zeros(len(whole.texts), dtype=np.int64)
    rows = offsets_of([*whole.lengths[alone].tolist(), *(len(piece.tokens) for piece in pieces)])
    begins[alone] = rows[: len(alone)]
    return [*begins.tolist(), *rows[len(alone) : -1].tolist()], int(rows[-1])


def _shared_tokens(
    selections: Sequence[Selection], whole: _WholeTexts, pieces: Sequence[tuple[Sequences, Piece]]
) -> SharedTokens:
    """What whole sequences share with each other, and with the pieces that begin a text. A sequence with an unattended
    tail shares nothing."""
    kinds = [
        selection.sequences.kind
        for selection, (start, stop) in zip(selections, pairwise(whole.bounds), strict=True)
        for _ in range(start, stop)
    ]
    sharers = [
        Sharer(tokens=text, kind=kind, alone=tail > 0)
        for text, kind, tail in zip(whole.texts, kinds, whole.tails.tolist(), strict=True)
    ]
    leaders = [
        Sharer(tokens=piece.tokens, kind=sequences.kind, leader=True) for sequences, piece in pieces if not piece.start
    ]
    return SharedTokens.of([*sharers, *leaders], joined=any(selection.joined for selection in selections))


def _packed(selection: Selection, whole_places: Counts, cut_places: Sequence[int]) -> PackedSequences:
    """The sequences of a job that outputs are made of: whole ones at `whole_places`, those that end with a piece at
    `cut_places`."""
    if selection.uncut:
        return PackedSequences(sequences=selection.sequences, numbers=selection.numbers, places=whole_places)
    whole, ended = selection.whole, selection.ended
    places = np.zeros(len(selection.numbers), dtype=np.int64)
    places[whole] = whole_places
    places[ended & ~whole] = cut_places
    return PackedSequences(
        sequences=selection.sequences,
        numbers=selection.numbers[ended],
        places=places[ended],
    )
