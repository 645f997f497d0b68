"""Tiny models with static embeddings and Routers, written to disk as sentence-transformers writes them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from tokenizers import Tokenizer

from support.tiny import reader, write_encoder

ROWS, WIDTH = 1000, 64
"""Token ids of the tiny tokenizer, and the width of tiny-bert."""
TEXTS = ["w1 w2 w3", "w7 w7", "w5 " * 60, "some other words", "[CLS] w9 w8", "w9 w8 w7 w6 w1"]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Seeded normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def static(width: int = WIDTH, seed: int = 0) -> StaticEmbedding:
    """A table of random rows."""
    return StaticEmbedding(reader(), embedding_weights=numbers(ROWS, width, seed=seed))


def sparse_static(seed: int = 0) -> SparseStaticEmbedding:
    """A table of random weights; every fourth token has none."""
    weights = numbers(ROWS, seed=seed).abs()
    weights[::4] = 0
    return SparseStaticEmbedding(reader(), weight=weights, frozen=True)


def encoder(folder: Path, name: str = "tiny-bert") -> list[Any]:
    """A Transformer whose tokens are pooled by their mean."""
    write_encoder(folder, name)
    return [Transformer(str(folder)), Pooling(WIDTH, "mean")]


def splade(folder: Path) -> list[Any]:
    """A masked language model whose logits are pooled."""
    write_encoder(folder, "tiny-bert", "masked-lm")
    return [Transformer(str(folder), transformer_task="fill-mask"), SpladePooling("max")]


def inference_free(folder: Path, **options: Any) -> SparseEncoder:
    """Queries by a table, documents by SPLADE."""
    router = Router.for_query_document([sparse_static()], splade(folder / "encoder"))
    return saved(SparseEncoder(modules=[router], device="cpu", similarity_fn_name="dot", **options), folder)


def saved(model: Any, folder: Path) -> Any:
    """The model, written to `folder`/saved."""
    model.save(str(folder / "saved"), create_model_card=False)
    return model


def dense_model(folder: Path, *modules: Any, **options: Any) -> SentenceTransformer:
    """A SentenceTransformer of these modules, saved."""
    model: SentenceTransformer = saved(SentenceTransformer(modules=list(modules), device="cpu", **options), folder)
    return model


def sparse(vectors: torch.Tensor) -> np.ndarray:
    """Dense numbers [S, V] of sentence-transformers' sparse vectors."""
    rows: np.ndarray = vectors.to_dense().numpy()
    return rows


def cut_tokenizer(most: int, direction: str = "right") -> Tokenizer:
    """The tiny tokenizer, which cuts texts by itself."""
    tokenizer = reader().backend_tokenizer
    tokenizer.enable_truncation(most, direction=direction)
    return tokenizer
