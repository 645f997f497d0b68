"""Listwise rerankers: jina-reranker-v3 and v3.5, which read a query and many documents as one text (arXiv:2509.25085).

Each document ends with a marker token, and the query behind them with another one. The model's last hidden states there
go through two layers without biases, and a score is the cosine of the query's row with a document's. No file of such a
folder says how the text is written, only the code that its repository brings; here it stands as data.
"""

from pathlib import Path
from typing import Any

from gpu_worker.repository.files import whole
from gpu_worker.repository.recipe import DenseRecipe, LayerRecipe, ListwiseRecipe
from gpu_worker.repository.tokenizer import REMEDY, TokenizerFile, TokenizerReader
from shared.card import Listwise
from shared.errors import ModelRefused

ARCHITECTURE = "JinaForRanking"
OPENING = (
    "<|im_start|>system\n"
    "You are a search relevance expert who can determine a ranking of the passages based on how relevant they are to "
    "the query. If the query is a question, how relevant a passage is depends on how well it answers the question. If "
    "not, try to analyze the intent of the query and assess how well each passage satisfies the intent. If an "
    "instruction is provided, you should follow the instruction when determining the ranking.<|im_end|>\n"
    "<|im_start|>user\n"
    "I will provide you with {count} passages, each indicated by a numerical identifier. Rank the passages based on "
    "their relevance to query: {query}\n"
)
INSTRUCTION = "<instruct>\n{instruction}\n</instruct>\n"
DOCUMENT = '<passage id="{number}">\n{document}<|embed_token|>\n</passage>\n'
CLOSING = "<query>\n{query}<|rerank_token|>\n</query><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
BLOCK_DOCUMENTS = 125
LENGTHS, WINDOWED_LENGTHS = (512, 2048), (1024, 8192)
"""Most tokens of a query and of a document: of v3, whose layers attend to all tokens before, and of v3.5, most of whose
layers attend within a window."""


def read(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The heads of a repository whose config.json is `config`: its projector, and how texts are written.

    Raises ModelRefused.
    """
    file = path / "config.json"
    if config.get("model_type") != "qwen3":
        raise ModelRefused(f"{file}: a listwise reranker of the model_type {config.get('model_type')!r}, not qwen3")
    hidden = whole(config.get("hidden_size"), f"{file}: hidden_size", least=2)
    layers = tuple(
        LayerRecipe(
            kind="dense",
            inputs=inputs,
            outputs=outputs,
            activation=f"torch.nn.{activation}",
            weights="model",
            keys={"weight": f"projector.{place}.weight"},
        )
        for place, inputs, outputs, activation in ((0, hidden, hidden // 2, "ReLU"), (2, hidden // 2, 0, "Identity"))
    )
    query_length, document_length = WINDOWED_LENGTHS if _windowed(config) else LENGTHS
    listwise = ListwiseRecipe(
        query_length=query_length,
        document_length=document_length,
        block_documents=BLOCK_DOCUMENTS,
        opening=OPENING,
        instruction=INSTRUCTION,
        document=DOCUMENT,
        closing=CLOSING,
        document_marker="<|embed_token|>",
        query_marker="<|rerank_token|>",
    )
    # The mean of a range of one token is the token's row.
    return {"dense": DenseRecipe(poolings=("mean",), layers=layers), "listwise": listwise}


def _windowed(config: dict[str, Any]) -> bool:
    """Whether some layers attend within a window. Where no `layer_types` says it, as transformers' Qwen3 makes them."""
    if config.get("layer_types"):
        return "sliding_attention" in config["layer_types"]
    first, layers = config.get("max_window_layers", 28), config.get("num_hidden_layers", 32)
    return bool(config.get("use_sliding_window")) and first < layers


def resolve(recipe: ListwiseRecipe, tokenizer: TokenizerFile, reader: TokenizerReader, rows: int) -> Listwise:
    """Finds the ids of the markers, which must be tokens that the tokenizer never splits.

    `rows`: the number of the model's embeddings. `dimensions` is left for its heads to tell. Raises ModelRefused.
    """
    markers = (recipe.document_marker, recipe.query_marker)
    ids = tokenizer.ids_of(markers)
    for marker in markers:
        if marker not in ids:
            raise ModelRefused(f"its tokenizer has no token {marker}, by which a listwise reranker scores: {REMEDY}")
        if ids[marker] >= rows:
            raise ModelRefused(f"the token {marker} has the id {ids[marker]}, the model {rows} embeddings: {REMEDY}")
        if reader.ids(f"a{marker}\na").count(ids[marker]) != 1:
            raise ModelRefused(f"its tokenizer splits {marker}, by which a listwise reranker scores: {REMEDY}")
    return Listwise(
        query_length=recipe.query_length,
        document_length=recipe.document_length,
        block_documents=recipe.block_documents,
        dimensions=0,
        opening=recipe.opening,
        instruction=recipe.instruction,
        document=recipe.document,
        closing=recipe.closing,
        document_marker=recipe.document_marker,
        document_marker_id=ids[recipe.document_marker],
        query_marker=recipe.query_marker,
        query_marker_id=ids[recipe.query_marker],
    )
