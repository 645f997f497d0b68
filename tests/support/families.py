"""Texts that begin alike: random families of them."""

import random

from support.tiny import random_ids


def family(chance: random.Random, texts: int, longest: int, seed: int) -> list[list[int]]:
    """Texts of at most `longest` tokens, each of which begins as a random part of one before it and goes on by itself,
    or not at all."""
    found = random_ids([chance.randint(1, longest)], seed=seed)
    for number in range(1, texts):
        other = chance.choice(found)
        begin = other[: chance.randint(0, len(other))]
        (rest,) = random_ids([chance.randint(0 if begin else 1, longest)], seed=1000 * seed + number)
        found.append((begin + rest)[:longest])
    return found
