"""Which rows of the input a command embeds, and in which shard each lies. Knows no files.

Shard k holds the rows k x R to (k + 1) x R of the input. Of n commands that share the work, command i writes the shards
k with k % n == i. So all of them together write what one would write alone.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """The rows of one command. `rows_per_shard` is R, `index` i and `count` n; `finished` shards are not read again."""

    rows_per_shard: int
    index: int = 0
    count: int = 1
    finished: AbstractSet[int] = field(default_factory=frozenset)

    def shard_of(self, number: int) -> int:
        """The shard of a row, by the row's number in the input."""
        return number // self.rows_per_shard

    def wants(self, number: int) -> bool:
        """Whether the command embeds a row."""
        shard = number // self.rows_per_shard
        return shard % self.count == self.index and shard not in self.finished

    def wants_any(self, start: int, stop: int) -> bool:
        """Whether the command embeds any of the rows from `start` to before `stop`."""
        shards = range(start // self.rows_per_shard, (stop - 1) // self.rows_per_shard + 1) if stop > start else ()
        return any(self.wants(shard * self.rows_per_shard) for shard in shards)
