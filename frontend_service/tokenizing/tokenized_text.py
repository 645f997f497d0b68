"""One text as token ids, as the model sees it, with the places of its tokens."""

from dataclasses import dataclass

from tokenizers import Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedText:
    """One text as the model sees it.

    `prompt_length`: tokens at its start that pooling leaves out. `expansion`: tokens at its end that were added to a
    query. `start`: letters of the text before the part that `encoding` was made of.
    """

    encoding: Encoding
    truncated: bool = False
    prompt_length: int = 0
    expansion: int = 0
    start: int = 0

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each token begins and ends in the text with its prompt, in characters; (0, 0) for special tokens."""
        offsets, shift = self.encoding.offsets, self.start
        if not shift:
            return offsets
        special = self.encoding.special_tokens_mask
        return [
            (start, end) if is_special else (start + shift, end + shift)
            for (start, end), is_special in zip(offsets, special, strict=True)
        ]
