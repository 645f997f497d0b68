"""Truncation of encodings, without the pieces that the `tokenizers` library keeps of what it cuts off."""

from tokenizers import Encoding

from shared.vectors import TruncationSide


def shortened(encoding: Encoding, length: int, side: TruncationSide) -> Encoding:
    """The encoding, or a copy that is cut at the end `side` to `length` tokens.

    `Encoding.truncate` keeps what it cuts off, in pieces of `length` tokens, and `post_process` joins each piece of one
    text with each piece of another: thousands of pieces of two long texts would make millions. So the other end is cut
    at a length that leaves a single piece, which is the result.
    """
    over = len(encoding) - length
    if over <= 0:
        return encoding
    encoding = Encoding.merge([encoding])  # a copy: it may be part of other pairs
    if over < length or not length:
        encoding.truncate(length, direction=side.name.lower())
        return encoding
    other = TruncationSide.RIGHT if side is TruncationSide.LEFT else TruncationSide.LEFT
    encoding.truncate(over, direction=other.name.lower())
    return encoding.overflowing[0]
