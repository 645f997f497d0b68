"""Tables in place of a transformers model: a row for each token id (static embeddings), or a weight (queries
of inference-free SPLADE, arXiv:2411.04403).

Their folders are those of sentence-transformers' StaticEmbedding, and model2vec's as it publishes them (config.json of
the type model2vec, with or without a modules.json). Pickles are read as plain tensors.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpu_worker.repository import fitting, tokenizer
from gpu_worker.repository.files import checked, read_object, read_tensors, tensor_files, whole
from gpu_worker.repository.recipe import DenseRecipe, QueriesRecipe, Recipe
from gpu_worker.repository.tokenizer import TokenizerFile, TokenizerReader
from shared.errors import ModelRefused
from shared.query_table import TABLE_WEIGHTS, WEIGHT_BYTES, QueryTable
from shared.vectors import InputType

MODEL2VEC = "model2vec"
"""The `model_type` of model2vec's config.json."""
TABLE, WEIGHT = "embedding.weight", "weight"
"""Names of the table of a StaticEmbedding and of a SparseStaticEmbedding."""
ROWS, MAPPING, ROW_WEIGHTS = "embeddings", "mapping", "weights"
"""Names of model2vec's tensors: rows [R, W], for each token id its row [V] and the factor of that [V]. Of the last two
either may be missing."""


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


def is_model2vec(path: Path) -> bool:
    """Whether a folder without a modules.json is model2vec's."""
    return read_object(path / "config.json", missing={}).get("model_type") == MODEL2VEC


def read(path: Path) -> Recipe:
    """Reads the recipe of a folder of model2vec: means of rows, of unit length where its config says `normalize`."""
    file = path / "config.json"
    normalize = checked(read_object(file).get("normalize", False), bool, f"{file}: normalize")
    return Recipe(static=True, dense=DenseRecipe(normalize=normalize), max_tokens=token_limit(path))


def token_limit(folder: Path) -> int | None:
    """Reads the length to which texts are cut: tokenizer.json's `truncation`, which sentence-transformers leaves on."""
    file = folder / "tokenizer.json"
    truncation = read_object(file).get("truncation")
    if truncation is None:
        return None
    length = checked(truncation, dict, f"{file}: truncation").get("max_length")
    return whole(length, f"{file}: truncation: max_length")


def table(folder: Path) -> Tensor:
    """Reads a table [V, W] float32. Raises ModelRefused, naming the file."""
    tensors, file = _tensors(folder, {TABLE, ROWS, MAPPING, ROW_WEIGHTS})
    if TABLE in tensors:
        return _numbers(tensors, TABLE, 2, file)
    if ROWS not in tensors:
        raise ModelRefused(f"{file} has neither {TABLE} nor {ROWS}")
    rows = _numbers(tensors, ROWS, 2, file)
    if MAPPING in tensors:
        rows = rows[_places(tensors[MAPPING], len(rows), file)]
    if ROW_WEIGHTS in tensors:
        factors = _numbers(tensors, ROW_WEIGHTS, 1, file)
        if len(factors) != len(rows):
            raise ModelRefused(f"{file}: {ROW_WEIGHTS} has {len(factors)} numbers for {len(rows)} tokens")
        rows = rows * factors[:, None]
    return rows.contiguous()


def weights(folder: Path) -> Tensor:
    """Reads the weights [V] float32 of a SparseStaticEmbedding, by which queries of inference-free SPLADE are read.

    Raises ModelRefused, for negative ones too: a sparse vector has none.
    """
    tensors, file = _tensors(folder, {WEIGHT})
    if WEIGHT not in tensors:
        raise ModelRefused(f"{file} has no {WEIGHT}")
    numbers = _numbers(tensors, WEIGHT, 1, file)
    if (numbers < 0).any():
        raise ModelRefused(f"{file}: {WEIGHT} holds negative numbers, and sparse vectors have positive weights alone")
    return numbers.contiguous()


def read_queries(recipe: QueriesRecipe, path: Path, trust_remote_code: bool) -> Queries:
    """Reads the table and its tokenizer from a repository. Raises ModelRefused, naming the folder."""
    folder = path / recipe.folder
    exported = tokenizer.export(tokenizer.read(folder, trust_remote_code), lowercase=False, bare=True)
    table_weights, reader = weights(folder), TokenizerReader(exported)
    size = len(reader.vocabulary())
    if len(table_weights) != size:
        raise ModelRefused(f"{folder}: there are {len(table_weights)} weights for {size} tokens")
    try:
        notices = (exported.notice, fitting.check_vocabulary(exported, reader, len(table_weights)))
    except ModelRefused as refused:
        raise ModelRefused(f"{folder}: {refused}") from None
    return Queries(
        table=QueryTable(table_weights.numpy()),
        tokenizer=exported,
        max_tokens=recipe.max_tokens,
        default=recipe.default,
        notice="; ".join(filter(None, notices)),
    )


def _tensors(folder: Path, names: set[str]) -> tuple[dict[str, Tensor], Path]:
    """The tensors of these names that a folder has, and a file of them for refusals."""
    files = tensor_files(folder, "model", names)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read_tensors(file, names)
    return tensors, files[0] if files else folder


def _numbers(tensors: dict[str, Tensor], name: str, axes: int, file: Path) -> Tensor:
    """Reads a tensor in float32. Raises ModelRefused for another shape, whole numbers, and numbers that are not
    finite."""
    tensor = tensors[name]
    if tensor.dim() != axes or not tensor.numel():
        raise ModelRefused(f"{file}: {name} has the shape {list(tensor.shape)}, it must have {axes} axes and be filled")
    if not tensor.is_floating_point():
        raise ModelRefused(f"{file}: {name} holds {str(tensor.dtype)[6:]}, which is not served: only float types are")
    numbers = tensor.float()
    if not torch.isfinite(numbers).all():
        raise ModelRefused(f"{file}: {name} holds numbers that are not finite")
    return numbers


def _places(mapping: Tensor, rows: int, file: Path) -> Tensor:
    """Finds the row of each token id."""
    if mapping.dim() != 1 or mapping.is_floating_point() or mapping.dtype == torch.bool:
        raise ModelRefused(f"{file}: {MAPPING} must be one row of whole numbers")
    places = mapping.long()
    if not len(places) or int(places.min()) < 0 or int(places.max()) >= rows:
        raise ModelRefused(f"{file}: {MAPPING} names rows outside of {ROWS}, which has {rows}")
    return places
