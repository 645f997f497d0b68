"""Which rows of the input are to be done, and in which shard each lies. Knows no files.

Shard k holds the rows k x R to (k + 1) x R of the input. Of n commands that share the work, command i writes the shards
k with k % n == i. So all of them together write what one would write alone.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """`rows_per_shard` is R. `finished`: shards that need not be read again."""

    rows_per_shard: int
    index: int = 0
    count: int = 1
    finished: AbstractSet[int] = field(default_factory=frozenset)

    def shard(self, number: int) -> int:
        """Of a row."""
        return number // self.rows_per_shard

    def wants(self, number: int) -> bool:
        """Whether a row is to be done."""
        shard = number // self.rows_per_shard
        return shard % self.count == self.index and shard not in self.finished

    def wants_any(self, start: int, stop: int) -> bool:
        """Whether one of the rows from `start` to before `stop` is."""
        shards = range(start // self.rows_per_shard, (stop - 1) // self.rows_per_shard + 1) if stop > start else ()
        return any(self.wants(shard * self.rows_per_shard) for shard in shards)
