"""Counts of jobs by size, in powers of two. No clock, no I/O."""

from shared.load import bucket


class SizeCounts:
    """`counts[i]`: jobs of 2^i to 2^(i+1) - 1 tokens. The last count is never 0."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def add_job(self, tokens: int) -> None:
        """Counts a job of so many tokens."""
        place = bucket(tokens)
        if place >= len(self.counts):
            self.counts += [0] * (place + 1 - len(self.counts))
        self.counts[place] += 1

    def remove_job(self, tokens: int) -> None:
        """Takes a job of so many tokens out of the counts."""
        self.counts[bucket(tokens)] -= 1
        while self.counts and not self.counts[-1]:
            self.counts.pop()
