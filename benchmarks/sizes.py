"""Sizes of the named workloads, as published; for texts and for token ids alike."""

from typing import Literal

Scale = Literal["small", "full"]
"""For two cores, or for an accelerator."""
REPEATS = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192)
"""How often each of the 16 prompts of a token-embed request repeats its unit of text."""
CLIENT_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
QUERY = 32
"""Tokens of a query: what late-interaction shapes fill queries up to, so that nothing is added."""
PROMPTS, PROMPT_TOKENS, INSTRUCTION_TOKENS = 2000, 45, 20
"""Of a burst: prompts, tokens of each, and those of them that are its instruction."""
