"""A step: what it computes of all jobs, packed into one batch, and the texts that end in it. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from gpu_worker.engine.step.sequences import PackedSequences, Selection
from gpu_worker.engine.step.sharing import NONE_SHARED, SharedTokens, leaders_of, sharers_of
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import Piece
from gpu_worker.ragged.texts import PackedTexts
from gpu_worker.ragged.token_types import Counts, TokenTypes
from gpu_worker.ragged.upload import Upload

NOTHING = PackedTexts(lengths=(), offsets=np.zeros(1, dtype=np.int64), tokens=np.zeros(0, dtype=np.int64))
"""The texts of a step in which none ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step computes, in one batch: whole sequences, then pieces, then followers: whole sequences whose first
    tokens are computed with another. Those of one adapter lie together, the first ones sorted by length and then by
    unattended tail.

    `batch` is None where no job has a sequence in the step. `texts` are what outputs are made of: the texts that end in
    the step, each of them whole, first the whole sequences, where they lie in the batch, then those that end with a
    piece, then followers; among these also pieces alone, whose outputs are made at once. `packed`: the sequences of
    each job slice that outputs are made of, and their places among `texts`. `shared_tokens`: how many tokens
    the batch does not have, since another sequence has them.
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
        """Packs what the step computes of each job slice. `uncounted`, `types`, `upload`: see `RaggedBatch.pack`.

        `shares`: sequences may share first tokens.
        """
        whole = [(selection.sequences, selection.whole_numbers) for selection in selections]
        counts = [len(numbers) for _, numbers in whole]
        texts = [sequences.ids_of(number) for sequences, numbers in whole for number in numbers.tolist()]
        seconds = np.concatenate([sequences.second_segments[numbers] for sequences, numbers in whole])
        tails = np.concatenate([sequences.tails[numbers] for sequences, numbers in whole])
        lengths = np.concatenate([sequences.lengths[numbers] for sequences, numbers in whole])
        adapters = np.array([sequences.adapter for sequences, _ in whole], dtype=np.int64).repeat(counts)
        adapted = [(selection.sequences, piece) for selection in selections for piece in selection.pieces()]
        # The batch wants those first that begin a text; what another takes tokens from must be computed before it.
        adapted.sort(key=lambda entry: (entry[1].start > 0, entry[1].cache.depth, entry[0].adapter))
        pieces = [piece for _, piece in adapted]
        shown = [piece for piece in pieces if piece.last]
        shared = NONE_SHARED
        if shares:
            joined = any(selection.joined for selection in selections)
            kinds = [sequences.kind for sequences, numbers in whole for _ in range(len(numbers))]
            shared = SharedTokens.of([*sharers_of(texts, tails, kinds), *leaders_of(adapted)], joined=joined)
        followers = np.array(shared.followers, dtype=np.int64)
        others = np.arange(len(texts))
        if len(followers):
            others = np.setdiff1d(others, followers)
        order = others
        if len(others) > 1:
            order = others[np.lexsort((tails[others], lengths[others], adapters[others]))]
        places = np.empty(len(texts), dtype=np.int64)
        places[order] = np.arange(len(order))
        places[followers] = np.arange(len(followers)) + len(order) + len(shown)
        packed = [
            _packed(selection, places[start:stop], len(order), shown)
            for selection, (start, stop) in zip(selections, pairwise(accumulate(counts, initial=0)), strict=True)
        ]
        if not texts and not pieces:
            return cls(batch=None, texts=NOTHING, packed=packed)
        behind = shared.followers_behind([*order.tolist(), *range(len(texts), len(shared.counts))], pieces)
        batch = RaggedBatch.pack(
            [texts[place] for place in order.tolist()],
            device,
            uncounted,
            types=types,
            second_segments=seconds[order].tolist(),
            tails=tails[order].tolist(),
            pieces=pieces,
            followers=behind,
            adapters=[
                *adapters[order].tolist(),
                *(sequences.adapter for sequences, _ in adapted),
                *adapters[followers].tolist(),
            ],
            upload=upload,
        )
        others_shown = [*(piece.sequence for piece in shown), *(follower.sequence for follower in behind)]
        whole_texts = batch.first(len(order), *others_shown) if others_shown or pieces else batch
        shared_tokens = int(shared.counts.sum()) + sum(piece.start for piece in pieces if piece.forks)
        return cls(batch=batch, texts=whole_texts, packed=packed, shared_tokens=shared_tokens)

    def hidden_of_texts(self, hidden: Tensor) -> Tensor:
        """Hidden states of `texts`, from those of the batch [T, H]. Keeps those of pieces until their text ends."""
        batch = self.batch
        assert batch is not None
        if not batch.pieces and batch.followers is None:
            return hidden
        shown = []
        for piece, rows in zip(batch.pieces, batch.piece_rows(), strict=True):
            piece.cache.add_hidden(piece.start, hidden[rows])
            shown += [piece.cache.hidden] if piece.last else []
        if batch.followers is not None:
            shown.append(hidden.index_select(0, batch.followers.rows))
        first = batch.offsets[len(batch.lengths) - len(batch.pieces) - len(batch.followers or ())]
        if first or not shown:
            shown = [hidden[:first], *shown]
        return torch.cat(shown) if len(shown) > 1 else shown[0]  # a long text that ends by itself is not copied


def _packed(selection: Selection, whole_places: Counts, first_shown: int, shown: list[Piece]) -> PackedSequences:
    """The sequences of a job slice that outputs are made of: whole ones at `whole_places`, the others, in the order of
    `shown`, from `first_shown` on."""
    if selection.uncut:
        return PackedSequences(sequences=selection.sequences, numbers=selection.numbers, places=whole_places)
    whole, ended = selection.whole, selection.ended
    places = np.zeros(len(selection.numbers), dtype=np.int64)
    places[whole] = whole_places
    place_of = {piece.cache: place for place, piece in enumerate(shown, first_shown)}
    places[ended & ~whole] = [place_of[piece.cache] for piece in selection.pieces() if piece.last]
    return PackedSequences(
        sequences=selection.sequences,
        numbers=selection.numbers[ended],
        places=places[ended],
    )
