"""How far back the tokens of a layer see, and so which keys and values later tokens still need. No torch."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """The earlier tokens that a token of a causal layer sees.

    `window`: those less than so many tokens before it. `chunk`: those of its own chunk of so many tokens (Llama 4).
    None: all of them.
    """

    window: int | None = None
    chunk: int | None = None

    def first_seen(self, token: int) -> int:
        """The first token that `token` sees, and the first one that any token from it on sees."""
        by_window = 0 if self.window is None else token - self.window + 1
        by_chunk = 0 if self.chunk is None else token // self.chunk * self.chunk
        return max(0, by_window, by_chunk)

    @property
    def most_seen(self) -> float:
        """Most earlier tokens that a token sees; `inf` where there is no limit."""
        return min(inf if size is None else size - 1 for size in (self.window, self.chunk))
