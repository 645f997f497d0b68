"""Finds out whether an encoder computes texts in pieces, and behind others that begin alike, as it computes them whole.

One run tells both: a piece has tokens of its own and key slots, of other rows of the batch or of caches. A layer that
looks at the whole text, at later tokens or at anything that no cache keeps gives other numbers. Where layers keep a
state, a text goes on from its own pieces alone.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.verify.gate import Reference, reason_of
from gpu_worker.model.verify.tolerances import exact_states
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import KEPT_STATES, KeySlots, Piece, SequenceCache, first_slots
from gpu_worker.ragged.texts import Ids

GROUP_TOKENS = 2048
"""Most tokens of texts that are run together, unless one text alone has more: their caches take memory."""
UNPACKED, TWO_SIDED = "its texts do not run packed", "its tokens attend to tokens that come later"
"""Reasons that hold whatever pieces give: such models are not tried."""
NumberedText = tuple[int, Ids]
"""Token ids of a text, and a number that decides how it is cut, and whether caches have the keys of its pieces."""


def reason_for_whole_texts(encoder: Encoder, reference: Reference) -> str:
    """Why texts are computed whole and each by itself; empty where they need not be. May raise what means that memory
    ran out."""
    packed = encoder.as_written
    if packed.unpacked_reason:
        return UNPACKED
    if not packed.causal:
        return TWO_SIDED
    if packed.token_types is not None:
        return "it reads token types"
    try:
        _check_pieces(packed, reference)
        return ""
    except Exception as error:  # foreign code that was not made for this fails anywhere
        return reason_of(error)


def kept_bytes(encoder: Encoder, reference: Reference) -> tuple[int, int]:
    """What the device keeps of each token of a text in pieces, which is keys and values of all layers and last hidden
    states; and of each such text, which is states of layers."""
    packed, cache = encoder.as_written, SequenceCache(2)
    piece = Piece(np.resize(reference.probes.texts[0], 2), 0, 1, cache)
    with torch.inference_mode():
        cache.add_hidden(0, packed(RaggedBatch.pack([], packed.device, packed.uncounted, pieces=[piece])))
    return cache.bytes // cache.count, cache.state_bytes * KEPT_STATES


def run_in_pieces(encoder: Encoder, batch: RaggedBatch) -> Tensor:
    """Hidden states [T, H] of the texts of a batch, each cut into up to three pieces.

    The first piece is computed with another text that begins like it. Of every second text later pieces attend to rows
    of the batch, and the second one is computed with a further text; of the others they attend to the other text's
    cache and then to their own, the last one in a second step. Each step has a whole text, too. Where layers keep a
    state, each piece has a step, beside those of the other texts, and no text begins like another.
    """
    run = _run_with_states if encoder.keeps_states else _run_group
    return torch.cat([run(encoder, group) for group in _groups(batch)])


def _check_pieces(packed: Encoder, reference: Reference) -> None:
    """Raises ModelRefused where pieces differ from the reference, and from the encoder's own whole texts."""
    hidden, expected = reference.among_others(packed, reference.probes.whole, partial(run_in_pieces, packed))
    if exact_states(hidden, expected, packed.dtype).near:
        return
    whole, _ = reference.among_others(packed, reference.probes.whole)
    exact = whole if packed.dtype == torch.float32 else expected.exact
    verdict = exact_states(hidden, replace(expected, exact=exact, rows=whole), packed.dtype)
    verdict.check("its texts do not run in pieces as they run whole")


def _run_group(encoder: Encoder, texts: list[NumberedText]) -> Tensor:
    """Hidden states of some texts, end to end: computes all in one step, but the last pieces of texts with caches."""
    whole = min((text for _, text in texts), key=len)
    cuts = [_cuts(number, len(text)) for number, text in texts]
    first, last, row = list[Piece](), list[Piece](), len(whole)
    slots = list[tuple[KeySlots, ...]]()
    for (number, text), stops in zip(texts, cuts, strict=True):
        leader = _branch(text, stops[0], texts)
        first.append(Piece(leader, 0, len(leader), SequenceCache(len(leader)) if number % 2 else None))
        slots.append(first[-1].slots(row))
        row += len(leader)
    for place, ((number, text), stops) in enumerate(zip(texts, cuts, strict=True)):
        cache = SequenceCache(len(text), first_slots(slots[place], stops[0])) if number % 2 else None
        for start, stop in pairwise(stops):
            if cache is None:
                follower = _branch(text, stop, texts)
                piece = Piece(follower, start, len(follower), shared=first_slots(slots[place], start))
            else:
                piece = Piece(text, start, stop, cache)
            slots[place] = piece.slots(row)
            if cache is not None and piece.last:
                last.append(piece)
            else:
                first.append(piece)
                row += len(piece.tokens)
    hidden = _run_step(encoder, whole, first)
    if last:
        _run_step(encoder, whole, last)
    rows = [some for of_text in slots for some in of_text]
    return torch.cat([(hidden if some.cache is None else some.cache.hidden)[some.rows] for some in rows])


def _run_with_states(encoder: Encoder, texts: list[NumberedText]) -> Tensor:
    """Hidden states of some texts, end to end: the n-th step has the n-th piece of each."""
    whole = min((text for _, text in texts), key=len)
    caches = [SequenceCache(len(text)) for _, text in texts]
    cuts = [list(pairwise((0, *_cuts(number, len(text))))) for number, text in texts]
    for step in range(max(map(len, cuts))):
        pieces = [
            Piece(text, bounds[step][0], bounds[step][1], cache)
            for (_, text), bounds, cache in zip(texts, cuts, caches, strict=True)
            if step < len(bounds)
        ]
        _run_step(encoder, whole, pieces)
    return torch.cat([cache.hidden for cache in caches])


def _run_step(encoder: Encoder, whole: Ids, pieces: list[Piece]) -> Tensor:
    """Computes the hidden states of a step of a whole text and pieces. Caches keep those of their pieces."""
    step = RaggedBatch.pack([whole], encoder.device, encoder.uncounted, pieces=pieces)
    hidden = encoder(step)
    for piece, rows in zip(pieces, step.piece_rows(), strict=True):
        piece.keep_hidden(hidden[rows])
    return hidden


def _cuts(number: int, length: int) -> list[int]:
    """The tokens at which the up to three pieces of a text end. Its `number` decides: the first or the last has one
    token, or all are about equal."""
    ways = ((1, length // 2), (length // 2, length - 1), (length // 3, 2 * length // 3))
    return sorted({stop for stop in ways[number % len(ways)] if 0 < stop < length} | {length})


def _branch(text: Ids, count: int, texts: list[NumberedText]) -> Ids:
    """The first `count` tokens of a text and then another one than it has there, which is an id of these texts, so one
    that the model reads; or all of the text."""
    if count == len(text):
        return text
    other = next((token for _, ids in texts for token in ids if token != text[count]), text[count])
    return np.append(text[:count], other)


def _groups(batch: RaggedBatch) -> Iterator[list[NumberedText]]:
    """Yields the texts of a batch, numbered, in groups of at most GROUP_TOKENS tokens."""
    group: list[NumberedText] = []
    for number, text in enumerate(np.split(batch.tokens.astype(np.int32), batch.offsets[1:-1])):
        if group and sum(len(other) for _, other in group) + len(text) > GROUP_TOKENS:
            yield group
            group = []
        group.append((number, text))
    yield group
