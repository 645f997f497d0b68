"""Texts of an exact number of tokens, and lengths to choose from. Knows no tokenizer: tests hold it to its word.

Real tokenizers get common English words, each one token of BERT's uncased vocabulary (MiniLM, bge-base-en). `random:`
shapes have a tokenizer of their own with one token a word "w0", "w1", ...
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

WORDS = (
    "river", "harbour", "lantern", "quiet", "engine", "winter", "orchard", "copper", "signal", "meadow",
    "thread", "violet", "granite", "captain", "ledger", "window", "pepper", "saddle", "marble", "candle",
    "forest", "needle", "cotton", "hammer", "bridge", "silver", "ocean", "basket", "mirror", "garden",
)  # fmt: skip
SPECIAL = 2
"""[CLS] and [SEP]."""
FIRST, LAST = 100, 800
"""Words of the synthetic vocabulary that are used: prompts and templates have those below, tiny shapes end at 858."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Words that are one token each. `exact`: whether that is certain for the model in question.

    `marker`: tokens that a late-interaction model puts before each query and document.
    """

    words: Sequence[str]
    exact: bool
    marker: int = 0

    @classmethod
    def of(cls, model: str) -> "Vocabulary":
        """By the name that the worker is started with."""
        if model.startswith("random:"):
            synthetic = [f"w{number}" for number in range(FIRST, LAST)]
            return cls(words=synthetic, exact=True, marker=int("colbert" in model.lower()))
        return cls(words=WORDS, exact=model == "minilm")

    @property
    def synthetic(self) -> bool:
        """Whether literal text would fall apart into characters."""
        return self.words is not WORDS

    def text(self, tokens: int, draw: random.Random) -> str:
        """A text of that many tokens, special tokens included."""
        return " ".join(draw.choices(self.words, k=tokens - SPECIAL))

    def side(self, tokens: int, draw: random.Random) -> str:
        """The same for a query or a document of a late-interaction comparison."""
        return self.text(tokens - self.marker, draw)

    def promise(self, tokens: int) -> int | None:
        """The count, where it is certain."""
        return tokens if self.exact else None


def uniform_lengths(count: int, mean: int, spread: float, seed: int) -> list[int]:
    """From mean x (1 - spread) to mean x (1 + spread)."""
    draw = random.Random(seed)
    return [draw.randint(round(mean * (1 - spread)), round(mean * (1 + spread))) for _ in range(count)]
