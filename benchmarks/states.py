"""Models whose layers keep a state: packed beside equal length, and a long text in pieces beside the whole text.

One tiny model of each kind of state, with four layers of 512 numbers, random weights and packed linear layers; in this
process, by the encoder alone. A step has texts of mixed lengths, as many as 4,096 tokens make; by equal length each
length is a run by itself, through the layers of transformers' class. Hidden states are compared before anything is
timed.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.benchmark import Figures, Options, Turn
from benchmarks.workloads import Ids, lognormal, token_ids
from gpu_worker.device.placement import Placement
from gpu_worker.kernels.attention import states
from gpu_worker.model.encoder.encoder import Encoder, EqualLengthEncoder
from gpu_worker.model.loading import load
from gpu_worker.model.verify import own_run
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.pieces import Piece, SequenceCache
from harness.random_models import miniature

OUR_SIDE, RATE = "packed", "tokens/s"
COMPARED = (RATE,)
EQUAL_LENGTH, IN_PIECES = "by equal length", "in pieces"
MIXED, LONG = "texts of mixed lengths", "a long text"
STEP, PIECE = 4096, 512
"""Tokens of a step, which are also those of the long text; and tokens of a piece of it."""
SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_hidden_layers": 4,
    "max_position_embeddings": STEP,
    "initializer_range": 0.02,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "short convolutions (lfm2)": ("lfm2", {"layer_types": ["conv", "conv", "full_attention", "conv"]}),
    "gated delta nets (qwen3_5_text)": (
        "qwen3_5_text",
        {"layer_types": [*["linear_attention"] * 3, "full_attention"]}
        | {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
        | {"linear_key_head_dim": 64, "linear_value_head_dim": 64},
    ),
    "Mamba-2 (bamba)": (
        "bamba",
        {"attn_layer_indices": [2], "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 64},
    ),
}
"""Model type and sizes of its own, by the name of its states."""


def encoder_of(folder: Path) -> Encoder:
    """Loads a model as the worker does. Raises AssertionError where it does not run packed."""
    encoder = load(str(folder), Placement.choose("cpu", "float32")).encoder
    assert not encoder.unpacked_reason, encoder.unpacked_reason
    return encoder


def by_equal_length(packed: Encoder) -> EqualLengthEncoder:
    """Makes a packed encoder's model run by equal length, with the same linear layers. The encoder is spent."""
    states.remove(packed.model)
    own_run.run_by(packed.model, own_run.FUSED)
    return EqualLengthEncoder(
        packed.model, attention=own_run.FUSED, token_types=None, width=packed.width, unpacked_reason="compared"
    )


def whole(encoder: Encoder, texts: list[Ids]) -> Tensor:
    """Computes the hidden states [T, H] of whole texts in one step."""
    return encoder(RaggedBatch.pack(texts, encoder.device))


def in_pieces(encoder: Encoder, text: Ids) -> Tensor:
    """Computes the hidden states [T, H] of a text, a piece in each step."""
    cache = SequenceCache(len(text))
    for start in range(0, len(text), PIECE):
        piece = Piece(text, start, min(start + PIECE, len(text)), cache)
        piece.keep_hidden(encoder(RaggedBatch.pack([], encoder.device, pieces=[piece])))
    return cache.hidden


def turn(compute: Callable[[], Tensor]) -> Figures:
    """Computes the hidden states of a step, or of the long text."""
    start = time.perf_counter()
    tokens = len(compute())
    return {RATE: tokens / (time.perf_counter() - start)}


def compare(packed: Tensor, other: Tensor) -> None:
    """Raises AssertionError where hidden states differ by more than a thousandth of the largest."""
    difference = float((packed - other).abs().max() / packed.abs().max())
    assert difference < 1e-3, f"hidden states differ by {difference} of the largest"


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Loads each model twice, once for each mode; yields the turns of each."""
    torch.set_num_threads(options.threads)
    lengths = lognormal(1000)
    lengths = lengths[: sum(total <= STEP for total in accumulate(lengths))]
    mixed, long = (token_ids(some, vocabulary=miniature.VOCABULARY) for some in (lengths, (STEP,)))
    options.settings.update(texts=len(mixed), lengths=len(set(lengths)), tokens=sum(lengths), piece=PIECE)
    cases = dict[str, dict[str, Turn]]()
    with torch.inference_mode():
        for name, (kind, sizes) in FAMILIES.items():
            folder = options.folder / kind
            if not folder.exists():
                folder.mkdir()
                miniature.write(folder, kind, **SIZES, **sizes)
            packed, equal_length = encoder_of(folder), by_equal_length(encoder_of(folder))
            computing = {
                MIXED: {OUR_SIDE: partial(whole, packed, mixed), EQUAL_LENGTH: partial(whole, equal_length, mixed)},
                LONG: {OUR_SIDE: partial(whole, packed, long), IN_PIECES: partial(in_pieces, packed, *long)},
            }
            for case, sides in computing.items():
                compare(*(compute() for compute in sides.values()))
                cases[f"{name}: {case}"] = {side: partial(turn, compute) for side, compute in sides.items()}
        yield cases
