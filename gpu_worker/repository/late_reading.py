"""How a late-interaction model reads texts, settled: what its files say, with its tokenizer and its positions."""

from dataclasses import dataclass, replace

from gpu_worker.repository.recipe import Expansion, LateInteractionRecipe
from gpu_worker.repository.tokenizer import TokenizerFile
from shared.card import LateInteraction
from shared.errors import ModelRefused
from shared.vectors import QueryExpansion


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How long a text may be: `usual` where nothing is said of its side, `asked` by --max-tokens (0: not asked).

    `positions` are those of the encoder. `uncounted` is the token id that the encoder gives no position of its own;
    None where positions count every token.
    """

    usual: int
    asked: int
    positions: int
    uncounted: int | None

    @property
    def most(self) -> int:
        """Tokens that no text may exceed."""
        return self.asked or self.positions

    def __str__(self) -> str:
        return f"--max-tokens is {self.asked}" if self.asked else f"the model has {self.positions} positions"


def resolve(recipe: LateInteractionRecipe, tokenizer: TokenizerFile, room: Room) -> LateInteraction:
    """Ids for tokens, and a length for each side. Words that are no tokens are not skipped. Raises ModelRefused."""
    query, document = (min(length or room.usual, room.most) for length in (recipe.query_length, recipe.document_length))
    skiplist = tuple(sorted(set(tokenizer.ids_of(recipe.skiplist).values())))
    plain = LateInteraction(
        query_length=query,
        document_length=document,
        skiplist=skiplist,
        skip_in_queries=recipe.skip_in_queries,
        skip_in_documents=recipe.skip_in_documents,
    )
    expansion = recipe.expansion
    if expansion is None:
        return plain
    if expansion.length > room.most:
        raise ModelRefused(f"{expansion.told_by}: queries are expanded to {expansion.length} tokens, and {room}")
    fixed = expansion.strategy is QueryExpansion.FIXED
    return replace(
        plain,
        query_length=expansion.length if fixed else max(query, expansion.length),
        query_expansion=expansion.strategy,
        expansion_length=expansion.length,
        expansion_id=_expansion_id(expansion, tokenizer, room),
        attend_to_expansion=expansion.attend,
    )


def _expansion_id(expansion: Expansion, tokenizer: TokenizerFile, room: Room) -> int:
    """The token named, else the mask, else the end of a text."""
    if expansion.token is not None:
        found = tokenizer.ids_of([expansion.token]).get(expansion.token)
        if found is None:
            raise ModelRefused(f"{expansion.told_by}: token {expansion.token!r} is not in the vocabulary")
    else:
        special = tokenizer.special_tokens
        found = special.get("mask", special.get("eos"))
        if found is None:
            raise ModelRefused(f"{expansion.told_by}: there is no mask or end token to expand queries with")
    if found == room.uncounted:
        raise ModelRefused(f"{expansion.told_by}: the model counts no positions for its padding token {found}")
    return found
