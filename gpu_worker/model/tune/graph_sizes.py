"""The sizes for which an encoder is captured as graphs, and the one that a batch runs with. No torch, no I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from gpu_worker.ragged.launches import TILE

TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 6144, 8192, 12288, 16384)
"""Tokens of a bucket. The host may take longer to launch the layers of a small model than the device takes for the
16,384 tokens of a usual step."""
SEQUENCES = (8, 32, 128, 512)
"""Sequences of a bucket."""
LONGEST = (TILE, 512, 2048, 4096)
"""Tokens of a bucket's longest sequence; the longest text that the model takes is added to them."""
MOST = 64
"""Most buckets that are captured."""
EMPTY = 8
"""Most attention tiles of a bucket, relative to those that a batch can fill: with more, it is slower than no graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A size of batches: up to `tokens` tokens in up to `sequences` sequences of up to `longest` tokens."""

    tokens: int
    sequences: int
    longest: int

    def holds(self, tokens: int, sequences: int, longest: int) -> bool:
        """Whether a batch of this size fits into the bucket."""
        return tokens <= self.tokens and sequences <= self.sequences and longest <= self.longest

    @property
    def tiles(self) -> int:
        """Attention tiles per head, filled or not."""
        return self.sequences * -(-self.longest // TILE)

    @property
    def filled(self) -> list[int]:
        """Lengths of a batch that about fills the bucket with texts of one length."""
        length = min(self.longest, -(-self.tokens // self.sequences))
        return [length] * min(self.sequences, self.tokens // length)

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.sequences} sequences of up to {self.longest}"


def buckets(step_tokens: int, longest: int) -> list[Bucket]:
    """Buckets that are worth a capture, the largest first.

    `longest` is the longest text that the model takes, at least 2 tokens. Buckets that no batch needs, since a smaller
    one holds it too, are left out, and so are those that would be mostly empty.
    """
    bounds = sorted({min(length, longest) for length in (*LONGEST, longest)})
    useful = []
    sizes = [tokens for tokens in TOKENS if tokens <= step_tokens]
    for (smaller, tokens), sequences in product(zip((0, *sizes), sizes, strict=False), SEQUENCES):
        if sequences > max(SEQUENCES[0], tokens // 2):
            continue  # texts of under two tokens each
        for place, bound in enumerate(bounds):
            if place and bounds[place - 1] >= tokens:
                break  # the bound before already holds every text of so few tokens
            bucket = Bucket(tokens=tokens, sequences=sequences, longest=bound)
            fillable = sequences + tokens // TILE
            if sequences * bound > smaller and bucket.tiles <= EMPTY * fillable:
                useful.append(bucket)
    fullest = sorted(useful, key=lambda bucket: bucket.tiles / (bucket.sequences + bucket.tokens // TILE))[:MOST]
    return sorted(fullest, key=lambda bucket: (bucket.tokens, bucket.tiles), reverse=True)


def smallest(candidates: Sequence[Bucket], tokens: int, sequences: int, longest: int) -> Bucket | None:
    """The bucket with the fewest tokens, and among those the fewest tiles, that holds a batch of this size.

    None where no bucket holds it.
    """
    holding = [bucket for bucket in candidates if bucket.holds(tokens, sequences, longest)]
    return min(holding, key=lambda bucket: (bucket.tokens, bucket.tiles), default=None)
