"""Other ways to compute a batch, each held against the reference: texts in pieces, and texts that begin as others.

So it is found out whether long texts may be computed in pieces, and whether texts that begin alike may share their
first tokens: a layer that looks at the whole text, at later tokens or at anything but its attention, as state spaces
and convolutions do, gives other numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device.memory import ran_out
from gpu_worker.model.encoder.encoder import Encoder, Run
from gpu_worker.model.verify.gate import Reference
from gpu_worker.model.verify.tolerances import exact_states
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import KeySlots, Piece, SequenceCache, first_slots
from gpu_worker.ragged.texts import Ids, offsets_of
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

GROUP_TOKENS = 2048
"""Most tokens of texts that are run together, unless one text alone has more: their caches take memory."""
UNPACKED, TWO_SIDED = "its texts do not run packed", "its tokens attend to tokens that come later"
"""Reasons that hold whatever pieces give: such models are not tried."""
ACCELERATED = "texts share first tokens on processors only"
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
    reason = _reason_against(encoder.as_written, reference, run_in_pieces, "in pieces")
    return Cutting(refusal=reason) if reason else Cutting(token_bytes=_token_bytes(encoder.as_written, reference))


def reason_to_share_nothing(encoder: Encoder, reference: Reference) -> str:
    """Why texts may share no tokens; empty where they may. May raise what means that memory ran out."""
    if encoder.device.type != "cpu":
        return ACCELERATED  # an H200 took twice the time for texts that share two fifths of their tokens
    return _reason_against(encoder.as_written, reference, run_sharing, "with tokens of another text")


def _reason_against(
    packed: Encoder, reference: Reference, run: Callable[[Encoder, RaggedBatch], Tensor], how: str
) -> str:
    """Why texts by another `run` of an encoder, which takes their tokens without later ones, are not what they are
    whole; empty where they are. `how` they run, in words."""
    if not packed.runs_packed:
        return UNPACKED
    if not packed.causal:
        return TWO_SIDED
    if packed.token_types is not None:
        return "it reads token types"
    try:
        _check_run(packed, reference, partial(run, packed), how)
        return ""
    except ModelRefused as refused:
        return str(refused)
    except Exception as error:  # foreign code that was not made for this fails anywhere
        if ran_out(error):
            raise
        return f"{type(packed.model).__name__} fails on texts that run {how}: {first_line(error)}"


def _check_run(packed: Encoder, reference: Reference, run: Run, how: str) -> None:
    """Raises ModelRefused where texts by another `run` of the encoder differ from the reference, and from the encoder's
    own whole texts."""
    hidden, expected = reference.among_others(packed, reference.probes.whole, run)
    if exact_states(hidden, expected, packed.dtype).near:
        return
    whole, _ = reference.among_others(packed, reference.probes.whole)
    exact = whole if packed.dtype == torch.float32 else expected.exact
    verdict = exact_states(hidden, replace(expected, exact=exact, rows=whole), packed.dtype)
    verdict.check(f"its texts do not run {how} as they run whole")


def _token_bytes(packed: Encoder, reference: Reference) -> int:
    """What the device keeps of each token of a text: keys and values of all layers, and last hidden states."""
    cache = SequenceCache(2)
    piece = Piece(np.resize(reference.probes.texts[0], 2), 0, 1, cache)
    with torch.inference_mode():
        cache.add_hidden(0, packed(RaggedBatch.pack([], packed.device, packed.uncounted, pieces=[piece])))
    return cache.bytes // cache.count


def run_in_pieces(encoder: Encoder, batch: RaggedBatch) -> Tensor:
    """Hidden states [T, H] of the texts of a batch, each cut into up to three pieces, which run beside a whole text."""
    return torch.cat([_run_pieces(encoder, group) for group in _groups(batch)])


def _run_pieces(encoder: Encoder, texts: list[NumberedText]) -> Tensor:
    """Hidden states of some texts, end to end: computes the first pieces of all in one step, then the second ones, then
    the third ones."""
    caches = [SequenceCache(len(text)) for _, text in texts]
    cuts = [list(pairwise(_places(number, len(text)))) for number, text in texts]
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
            piece.keep_hidden(hidden[rows])
    return torch.cat([cache.hidden for cache in caches])


def _places(number: int, length: int) -> list[int]:
    """The tokens at which a text is cut, its beginning and its end included: the first or the last piece has one token,
    or all pieces are about equal. `number` decides which."""
    ways = ((1,), (length // 2, length - 1), (length // 3, 2 * length // 3))
    return sorted({0, *ways[number % len(ways)], length})


def run_sharing(encoder: Encoder, batch: RaggedBatch) -> Tensor:
    """Hidden states [T, H] of the texts of a batch, each of which takes its first tokens from two texts that begin like
    it and go on otherwise, the second of which takes its own from the first."""
    return torch.cat([_run_followers(encoder, group) for group in _groups(batch)])


def _run_followers(encoder: Encoder, texts: list[NumberedText]) -> Tensor:
    """Hidden states of some texts, end to end."""
    chains = [_chain(number, text, texts) for number, text in texts]
    leaders = [chain[0][0] for chain in chains]
    begins = offsets_of([len(leader) for leader in leaders]).tolist()
    end = begins.pop()
    pieces, slots_of_texts = list[Piece](), list[tuple[KeySlots, ...]]()
    for begin, ((leader, _), *later) in zip(begins, chains, strict=True):
        slots: tuple[KeySlots, ...] = (KeySlots(None, begin, len(leader)),)
        for text, count in later:
            pieces.append(Piece(text, count, len(text), shared=first_slots(slots, count)))
            slots = pieces[-1].slots(end)
            end += len(text) - count
        slots_of_texts.append(slots)
    hidden = encoder(RaggedBatch.pack(leaders, encoder.device, encoder.uncounted, pieces=pieces))
    return torch.cat([hidden[some.rows] for slots in slots_of_texts for some in slots])


def _chain(number: int, text: Ids, texts: list[NumberedText]) -> list[tuple[Ids, int]]:
    """Up to three texts, the last of which is `text`, and how many tokens each has from the one before."""
    count = _shared(number, len(text))
    branches = [shared for shared in (count // 2, count) if shared]
    return list(zip([*(_branch(text, shared, texts) for shared in branches), text], [0, *branches], strict=True))


def _branch(text: Ids, count: int, texts: list[NumberedText]) -> Ids:
    """A text as long as `text` that has its first `count` tokens and then another: no longer, since a model may have no
    more positions.

    It goes on with the rest in reverse, or with an id of another text, so every id is one that the model reads.
    """
    rest = text[count:][::-1].copy()
    if rest[0] == text[count]:
        rest[0] = next((other for _, ids in texts for other in ids.tolist() if other != text[count]), rest[0])
    return np.concatenate([text[:count], rest])


def _shared(number: int, length: int) -> int:
    """How many tokens a text shares: one, half of them or all but one, as its number says; none of a text of one
    token."""
    return min(length - 1, (1, (length + 1) // 2, length - 1)[number % 3])


def _groups(batch: RaggedBatch) -> Iterator[list[NumberedText]]:
    """The texts of a batch, numbered, in groups of at most GROUP_TOKENS tokens."""
    group: list[NumberedText] = []
    for number, text in enumerate(np.split(batch.tokens.astype(np.int32), batch.offsets[1:-1])):
        if group and sum(len(other) for _, other in group) + len(text) > GROUP_TOKENS:
            yield group
            group = []
        group.append((number, text))
    yield group
