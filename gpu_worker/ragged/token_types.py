"""Which type each token of a text or a pair is fed with: what a tokenizer's template gives, told from ids. No torch."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
Edge = tuple[tuple[int, int], ...]
"""Id and type of each special token at an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The special tokens that stand before and after, and the type of what they enclose; of a pair, of its first text.

    The second text of a pair has the type 1.
    """

    before: Edge = ()
    body: int = 0
    after: Edge = ()

    @property
    def types(self) -> set[int]:
        """All that it gives, but for a second text's."""
        return {self.body, *(kind for _, kind in (*self.before, *self.after))}

    @property
    def length(self) -> int:
        """Special tokens."""
        return len(self.before) + len(self.after)


PLAIN = Frame()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTypes:
    """Token types of a model that reads them.

    A text that has not the special tokens of its frame, since its caller brought ids, is of the body's type throughout.
    `zeros`: whether types that are all 0 are fed as well, for models to which they are not nothing.
    """

    text: Frame = PLAIN
    pair: Frame = PLAIN
    zeros: bool = False

    def of(self, tokens: npt.NDArray[np.integer], offsets: Counts, seconds: Counts) -> Counts | None:
        """[T] of S sequences that begin at `offsets` [S + 1], whose second texts begin at `seconds` [S] (0: nowhere).

        None where the model is fed none.
        """
        if not self.zeros and self.text.types == {0} and not seconds.any():
            return None
        lengths, paired = np.diff(offsets), seconds > 0
        starts = offsets[:-1] + np.where(paired, seconds, lengths)
        within_second = np.arange(len(tokens)) >= np.repeat(starts, lengths)
        bodies = np.repeat(np.where(paired, self.pair.body, self.text.body), lengths)
        types: Counts = np.where(within_second, 1, bodies).astype(np.int64)
        for frame, chosen in ((self.text, ~paired), (self.pair, paired)):
            _frame(types, frame, tokens, offsets[:-1][chosen], offsets[1:][chosen])
        return types if self.zeros or types.any() else None

    def framed(self, text: Ids) -> Ids:
        """With the special tokens of a text at its ends, where types tell them apart and it has room for more."""
        if self.text.types == {0} or len(text) <= self.text.length:
            return text
        before, after = ([identity for identity, _ in edge] for edge in (self.text.before, self.text.after))
        whole: Ids = np.concatenate([before, text[len(before) : len(text) - len(after)], after]).astype(np.int32)
        return whole


def _frame(types: Counts, frame: Frame, tokens: npt.NDArray[np.integer], starts: Counts, stops: Counts) -> None:
    """Types of special tokens, in place, where all of them stand at the ends of a sequence."""
    edges = [(starts, place, special) for place, special in enumerate(frame.before)]
    edges += [(stops, place - len(frame.after), special) for place, special in enumerate(frame.after)]
    fits = stops - starts >= frame.length
    for ends, place, (identity, _) in edges:
        fits[fits] = tokens[ends[fits] + place] == identity
    for ends, place, (_, kind) in edges:
        types[ends[fits] + place] = kind
