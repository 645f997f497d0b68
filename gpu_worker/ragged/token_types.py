"""Token types (segment ids) as the tokenizer's template would give them, worked out from token ids. No torch."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
Edge = tuple[tuple[int, int], ...]
"""Id and type of each special token before or after a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The special tokens before and after a text or a pair, with their types, and the type of the tokens in between.

    In a pair, `body` is the type of the first text; the second text has the type 1.
    """

    before: Edge = ()
    body: int = 0
    after: Edge = ()

    @property
    def types(self) -> set[int]:
        """All types that occur, without the one of a second text."""
        return {self.body, *(kind for _, kind in (*self.before, *self.after))}

    @property
    def length(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.after)


PLAIN = Frame()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTypes:
    """Token types of a model that reads them.

    A text without the special tokens of its frame (its caller sent ids) has the body's type throughout. `zeros`:
    whether the model needs types even where all of them are 0.
    """

    text: Frame = PLAIN
    pair: Frame = PLAIN
    zeros: bool = False

    def of(self, tokens: npt.NDArray[np.integer], offsets: Counts, seconds: Counts) -> Counts | None:
        """Types [T] of S sequences that begin at `offsets` [S + 1]; second texts begin at `seconds` [S] (0: no pair).

        None where the model needs none.
        """
        if not self.zeros and self.text.types == {0} and not seconds.any():
            return None
        lengths, paired = np.diff(offsets), seconds > 0
        starts = offsets[:-1] + np.where(paired, seconds, lengths)
        within_second = np.arange(len(tokens)) >= np.repeat(starts, lengths)
        bodies = np.repeat(np.where(paired, self.pair.body, self.text.body), lengths)
        types: Counts = np.where(within_second, 1, bodies).astype(np.int64)
        for frame, framed in ((self.text, ~paired), (self.pair, paired)):
            _set_types(types, frame, tokens, offsets[:-1][framed], offsets[1:][framed])
        return types if self.zeros or types.any() else None

    def framed(self, text: Ids) -> Ids:
        """Puts a text's special tokens in place of the ids at its ends, where types matter and it is long enough."""
        if self.text.types == {0} or len(text) <= self.text.length:
            return text
        before, after = ([identity for identity, _ in edge] for edge in (self.text.before, self.text.after))
        whole: Ids = np.concatenate([before, text[len(before) : len(text) - len(after)], after]).astype(np.int32)
        return whole


def _set_types(types: Counts, frame: Frame, tokens: npt.NDArray[np.integer], starts: Counts, stops: Counts) -> None:
    """Sets the types of special tokens, in place, in the sequences that have all of them at their ends."""
    edges = [(starts, place, special) for place, special in enumerate(frame.before)]
    edges += [(stops, place - len(frame.after), special) for place, special in enumerate(frame.after)]
    complete = stops - starts >= frame.length
    for ends, place, (identity, _) in edges:
        complete[complete] = tokens[ends[complete] + place] == identity
    for ends, place, (_, kind) in edges:
        types[ends[complete] + place] = kind
