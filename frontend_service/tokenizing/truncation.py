"""Encodings cut at one end, without the pieces that the `tokenizers` library keeps of what was cut off."""

from tokenizers import Encoding

from shared.vectors import TruncationSide


def shortened(encoding: Encoding, length: int, side: TruncationSide) -> Encoding:
    """An encoding of at most `length` tokens: a copy where it is longer, without those of the end `side`.

    `Encoding.truncate` keeps what it cuts off, in pieces of `length` tokens, and `post_process` joins each piece of one
    text with each of another: thousands of long texts' pieces would make millions. So much is cut off the other end
    that the one piece is what is to stay.
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
