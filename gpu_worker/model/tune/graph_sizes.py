"""The sizes for which an encoder is captured as a graph, and which of them holds a batch. Pure; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from gpu_worker.ragged.launches import TILE

TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Above the last one the device is busy enough with what it is told one by one."""
SEQUENCES = (8, 64, 512)
LONGEST = (TILE, 512, 2048)
"""And the longest text that the model takes."""
MOST = 48
EMPTY = 8
"""Times as many tiles of attention as a batch can fill: a bucket with more of them is slower than none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Batches of up to so many `tokens` in so many `sequences`, of which none is longer than `longest`."""

    tokens: int
    sequences: int
    longest: int

    def holds(self, tokens: int, sequences: int, longest: int) -> bool:
        """Whether a batch of that size is captured by it."""
        return tokens <= self.tokens and sequences <= self.sequences and longest <= self.longest

    @property
    def tiles(self) -> int:
        """Of attention, for each head, filled or not."""
        return self.sequences * -(-self.longest // TILE)

    @property
    def filled(self) -> list[int]:
        """Lengths of a batch that fills it, about, with texts of one length."""
        length = min(self.longest, -(-self.tokens // self.sequences))
        return [length] * min(self.sequences, self.tokens // length)

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.sequences} sequences of up to {self.longest}"


def buckets(step_tokens: int, longest: int) -> list[Bucket]:
    """All that are worth a try, the largest first; `longest`: tokens of a text that the model takes, 2 at least.

    Left out is what no batch needs, since a smaller bucket holds it, and what would be mostly empty.
    """
    bounds = sorted({min(each, longest) for each in (*LONGEST, longest)})
    found = []
    sizes = [each for each in TOKENS if each <= step_tokens]
    for (smaller, tokens), sequences in product(zip((0, *sizes), sizes, strict=False), SEQUENCES):
        if sequences > max(SEQUENCES[0], tokens // 2):
            continue  # texts of under two tokens each
        for place, bound in enumerate(bounds):
            if place and bounds[place - 1] >= tokens:
                break  # the one before holds all texts of so few tokens
            bucket = Bucket(tokens=tokens, sequences=sequences, longest=bound)
            fillable = sequences + tokens // TILE
            if sequences * bound > smaller and bucket.tiles <= EMPTY * fillable:
                found.append(bucket)
    widest = sorted(found, key=lambda each: each.tiles / (each.sequences + each.tokens // TILE))[:MOST]
    return sorted(widest, key=lambda each: (each.tokens, each.tiles), reverse=True)


def smallest(known: Sequence[Bucket], tokens: int, sequences: int, longest: int) -> Bucket | None:
    """The bucket with the fewest tokens, and of these the fewest tiles, that holds such a batch; None above all."""
    holding = [each for each in known if each.holds(tokens, sequences, longest)]
    return min(holding, key=lambda each: (each.tokens, each.tiles), default=None)
