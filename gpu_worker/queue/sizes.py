"""How many jobs there are of each size, by powers of two. Pure; no clock."""

from shared.load import bucket


class Sizes:
    """`counts[i]`: jobs of 2^i to 2^(i+1) - 1 tokens; the last one is not 0."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def add(self, tokens: int) -> None:
        """Counts a job."""
        place = bucket(tokens)
        if place >= len(self.counts):
            self.counts += [0] * (place + 1 - len(self.counts))
        self.counts[place] += 1

    def remove(self, tokens: int) -> None:
        """Counts a job no more."""
        self.counts[bucket(tokens)] -= 1
        while self.counts and not self.counts[-1]:
            self.counts.pop()
