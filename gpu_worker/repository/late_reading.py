"""Resolves late-interaction settings of the files against the tokenizer and the position limit."""

from dataclasses import dataclass, replace

from gpu_worker.repository.recipe import Expansion, LateInteractionRecipe
from gpu_worker.repository.tokenizer import TokenizerFile
from shared.card import LateInteraction
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimits:
    """Limits for the length of a text, in tokens.

    `usual` holds where no file says more of queries or documents; `requested` is --max-tokens, or 0. `positions` is the
    number of positions of the encoder. `uncounted` is the token id that the encoder gives no position of its own; None
    where positions count every token.
    """

    usual: int
    requested: int
    positions: int
    uncounted: int | None

    @property
    def longest(self) -> int:
        """The length that no text may exceed, in tokens."""
        return self.requested or self.positions

    def __str__(self) -> str:
        return f"--max-tokens is {self.requested}" if self.requested else f"the model has {self.positions} positions"


def resolve(recipe: LateInteractionRecipe, tokenizer: TokenizerFile, limits: LengthLimits) -> LateInteraction:
    """Finds token ids and a length for queries and documents. Words that are no tokens are not skipped.

    Raises ModelRefused.
    """
    query_length, document_length = (
        min(length or limits.usual, limits.longest) for length in (recipe.query_length, recipe.document_length)
    )
    skiplist = tuple(sorted(set(tokenizer.ids_of(recipe.skiplist).values())))
    plain = LateInteraction(
        query_length=query_length,
        document_length=document_length,
        skiplist=skiplist,
        skip_in_queries=recipe.skip_in_queries,
        skip_in_documents=recipe.skip_in_documents,
    )
    expansion = recipe.expansion
    if expansion is None:
        return plain
    if expansion.length > limits.longest:
        raise ModelRefused(f"{expansion.source}: queries are expanded to {expansion.length} tokens, and {limits}")
    fixed = expansion.strategy is QueryExpansion.FIXED
    return replace(
        plain,
        query_length=expansion.length if fixed else max(query_length, expansion.length),
        query_expansion=expansion.strategy,
        expansion_length=expansion.length,
        expansion_id=_expansion_id(expansion, tokenizer, limits),
        attend_to_expansion=expansion.attend,
    )


def _expansion_id(expansion: Expansion, tokenizer: TokenizerFile, limits: LengthLimits) -> int:
    """The id of the token that the recipe names, else the mask token, else the end token."""
    if expansion.token is not None:
        token_id = tokenizer.ids_of([expansion.token]).get(expansion.token)
        if token_id is None:
            raise ModelRefused(f"{expansion.source}: token {expansion.token!r} is not in the vocabulary")
    else:
        special = tokenizer.special_tokens
        token_id = special.get("mask", special.get("eos"))
        if token_id is None:
            raise ModelRefused(f"{expansion.source}: there is no mask or end token to expand queries with")
    if token_id == limits.uncounted:
        raise ModelRefused(f"{expansion.source}: the model counts no positions for its padding token {token_id}")
    return token_id
