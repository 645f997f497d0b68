"""A piece of a sequence: tokens that one step computes of a text that is longer than a step should be."""

from dataclasses import dataclass

from gpu_worker.ragged.sequence_cache import SequenceCache
from gpu_worker.ragged.token_types import Ids


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `start` to `stop` - 1 of a sequence with the token ids `sequence`.

    `cache` has what the earlier pieces left; this one adds its own. Outputs are made of the whole text, in the step in
    which it ends.
    """

    sequence: Ids
    start: int
    stop: int
    cache: SequenceCache

    @property
    def tokens(self) -> Ids:
        """Token ids of the piece."""
        return self.sequence[self.start : self.stop]

    @property
    def forks(self) -> bool:
        """Whether it is the first piece of a sequence whose first tokens are computed with another."""
        return 0 < self.start == self.cache.shared

    @property
    def last(self) -> bool:
        """Whether the sequence ends with this piece."""
        return self.stop == len(self.sequence)
