"""Counts of jobs by size, in powers of two. No clock, no I/O."""


class SizeCounts:
    """`counts[i]`: jobs of 2^i to 2^(i+1) - 1 tokens. The last count is never 0."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def add_job(self, tokens: int) -> None:
        """Counts a job of so many tokens."""
        place = _place(tokens)
        if place >= len(self.counts):
            self.counts += [0] * (place + 1 - len(self.counts))
        self.counts[place] += 1

    def remove_job(self, tokens: int) -> None:
        """Takes a job of so many tokens out of the counts."""
        self.counts[_place(tokens)] -= 1
        while self.counts and not self.counts[-1]:
            self.counts.pop()


def _place(tokens: int) -> int:
    return max(tokens, 1).bit_length() - 1
