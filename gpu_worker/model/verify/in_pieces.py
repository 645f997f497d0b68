"""Decides whether long texts may be computed in pieces: the gate's texts, cut in several ways, must give what they give
whole.

A layer that looks at the whole text, at later tokens or at anything but its attention gives other numbers in pieces.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device.memory import ran_out
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.verify.gate import Reference, compare
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import Piece
from gpu_worker.ragged.sequence_cache import SequenceCache
from gpu_worker.ragged.token_types import Ids
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

GROUP_TOKENS = 2048
"""Most tokens of texts that are run together, unless one text alone has more: their caches take memory."""
UNPACKED, TWO_SIDED = "its texts do not run packed", "its tokens attend to tokens that come later"
"""Reasons that hold whatever pieces give: such models are not tried."""
Run = Callable[[RaggedBatch], Tensor]
"""Computes the last hidden states [T, H] of a batch."""
NumberedText = tuple[int, Ids]
"""Token ids of a text, and a number that decides how it is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """Whether texts may be cut. `token_bytes`: what the device keeps of each token meanwhile; 0 where texts may not be
    cut. `refusal`: the reason for that; else empty."""

    token_bytes: int = 0
    refusal: str = ""

    @property
    def allowed(self) -> bool:
        """Whether texts may be cut."""
        return self.token_bytes > 0


def cutting(encoder: Encoder, reference: Reference) -> Cutting:
    """Finds out whether an encoder computes pieces as it computes whole texts. May raise what means that memory ran
    out."""
    packed = encoder.as_written
    if reason_against(packed):
        return Cutting(refusal=reason_against(packed))
    try:
        check_run(packed, reference, partial(run_in_pieces, packed), "in pieces")
        return Cutting(token_bytes=_token_bytes(packed, reference))
    except ModelRefused as refused:
        return Cutting(refusal=str(refused))
    except Exception as error:  # foreign code that was not made for this fails anywhere
        if ran_out(error):
            raise
        return Cutting(refusal=f"{type(packed.model).__name__} fails on a piece of a text: {first_line(error)}")


def reason_against(encoder: Encoder) -> str:
    """Why an encoder cannot compute the tokens of a text without later ones; empty where that must be tried."""
    if not encoder.runs_packed:
        return UNPACKED
    if not encoder.causal:
        return TWO_SIDED
    return "" if encoder.token_types is None else "it reads token types"


def _token_bytes(packed: Encoder, reference: Reference) -> int:
    """What the device keeps of each token of a text: keys and values of all layers, and last hidden states."""
    cache = SequenceCache(2)
    piece = Piece(np.resize(reference.probes.texts[0], 2), 0, 1, cache)
    with torch.inference_mode():
        cache.add_hidden(0, packed(RaggedBatch.pack([], packed.device, packed.uncounted, pieces=[piece])))
    return cache.bytes // cache.length


def check_run(packed: Encoder, reference: Reference, run: Run, how: str) -> None:
    """Raises ModelRefused where texts by another `run` of the encoder differ from the reference, and from the encoder's
    own whole texts. `how` they run, in words."""
    try:
        reference.check(packed, reference.whole, run)
        return
    except ModelRefused:
        whole, otherwise = (reference.among_others(packed, reference.whole, way) for way in (None, run))
    exact = whole.hidden if packed.dtype == torch.float32 else whole.exact
    verdict = compare(otherwise.hidden, exact, whole.hidden, reference.padding_noise, packed.dtype)
    if verdict:
        raise ModelRefused(f"its texts do not run {how} as they run whole: {verdict}")


def run_in_pieces(encoder: Encoder, batch: RaggedBatch) -> Tensor:
    """Hidden states [T, H] of the texts of a batch, each cut into up to three pieces, which run beside a whole text."""
    texts = np.split(batch.tokens.astype(np.int32), batch.offsets[1:-1])
    return torch.cat([hidden for group in grouped(list(enumerate(texts))) for hidden in _run_group(encoder, group)])


def grouped(texts: list[NumberedText]) -> Iterator[list[NumberedText]]:
    """Numbered texts in groups of at most GROUP_TOKENS tokens."""
    group: list[NumberedText] = []
    for number, text in texts:
        if group and sum(len(other) for _, other in group) + len(text) > GROUP_TOKENS:
            yield group
            group = []
        group.append((number, text))
    yield group


def _run_group(encoder: Encoder, texts: list[NumberedText]) -> list[Tensor]:
    """Computes the first pieces of all texts in one step, then the second ones, then the third ones. Returns the hidden
    states [L, H] of each text."""
    caches = [SequenceCache(len(text)) for _, text in texts]
    cuts = [list(pairwise(places(number, len(text)))) for number, text in texts]
    shortest = min((text for _, text in texts), key=len)
    for turn in range(max(map(len, cuts))):
        pieces = [
            Piece(text, *bounds[turn], cache)
            for (_, text), bounds, cache in zip(texts, cuts, caches, strict=True)
            if turn < len(bounds)
        ]
        pieces.sort(key=lambda piece: piece.start > 0)
        step = RaggedBatch.pack([shortest], encoder.device, encoder.uncounted, pieces=pieces)
        hidden = encoder(step)
        for piece, rows in zip(step.pieces, step.piece_rows(), strict=True):
            piece.cache.add_hidden(piece.start, hidden[rows])
    return [cache.hidden for cache in caches]


def places(number: int, length: int) -> list[int]:
    """The tokens at which a text is cut, its beginning and its end included: the first or the last piece has one token,
    or all pieces are about equal. `number` decides which."""
    ways = ((1,), (length // 2, length - 1), (length // 3, 2 * length // 3))
    return sorted({0, *ways[number % len(ways)], length})
