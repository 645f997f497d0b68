"""Queries of inference-free SPLADE: a table has a weight for each token id, and no encoder runs (arXiv:2411.04403)."""

from dataclasses import dataclass
from pathlib import Path

from gpu_worker.repository import fitting, static_format, tokenizer
from gpu_worker.repository.recipe import QueriesRecipe
from gpu_worker.repository.tokenizer import TokenizerFile, TokenizerReader
from shared.errors import ModelRefused
from shared.query_table import TABLE_WEIGHTS, WEIGHT_BYTES, QueryTable
from shared.vectors import InputType


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """How a model reads queries by a table. `max_tokens`: the longest one. `default`: what texts are that are neither
    queries nor documents; UNSPECIFIED: every Encode must say it."""

    table: QueryTable
    tokenizer: TokenizerFile
    max_tokens: int
    default: InputType
    notice: str = ""

    @property
    def token_ids(self) -> int:
        """Weights of the table: ids run from 0 to this - 1."""
        return len(self.table.weights)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the table."""
        return WEIGHT_BYTES * self.token_ids

    @property
    def sent(self) -> bytes:
        """The table for frontends, which look queries up by themselves; empty for more weights than they take."""
        return self.table.content if self.token_ids <= TABLE_WEIGHTS else b""


def read(recipe: QueriesRecipe, path: Path, trust_remote_code: bool) -> Queries:
    """Reads the table and its tokenizer from a repository. Raises ModelRefused, naming the folder."""
    folder = path / recipe.folder
    exported = tokenizer.export_bare(tokenizer.read(folder, trust_remote_code))
    weights, reader = static_format.weights(folder), TokenizerReader(exported)
    size = len(reader.vocabulary())
    if len(weights) != size:
        raise ModelRefused(f"{folder}: there are {len(weights)} weights for {size} tokens")
    try:
        notices = (exported.notice, fitting.check_vocabulary(exported, reader, len(weights)))
    except ModelRefused as refused:
        raise ModelRefused(f"{folder}: {refused}") from None
    return Queries(
        table=QueryTable(weights.numpy()),
        tokenizer=exported,
        max_tokens=recipe.max_tokens,
        default=recipe.default,
        notice="; ".join(filter(None, notices)),
    )
