"""Late interaction in half precision on real weights, against float32 and against transformers' own half precision."""

import json
import os
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from demo.passages import PASSAGES, QUERIES
from gpu_worker.device.placement import Dtype, Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.maxsim.maxsim_kernels import score_of
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from shared.vectors import ScoringMethod
from support.references import mini_lm_path
from support.tiny import MULTI, ask, encode, ids_of, score, scores, token_rows, write_json

TEXTS = [QUERIES[0], *PASSAGES[:12]]
MOST = 96
"""Tokens of a text, of which all have fewer: the gate runs texts as long as that, slowly in half precision."""
LAYERS = [2, pytest.param(6, marks=pytest.mark.slow)]
"""MiniLM's first two, which load in a third of the time; all of them by `make test-slow`."""


@pytest.fixture(scope="module", params=LAYERS, ids=lambda layers: f"{layers} layers")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of MiniLM's first layers."""
    folder = tmp_path_factory.mktemp("minilm") / "cut"
    shutil.copytree(mini_lm_path(), folder, copy_function=os.symlink)
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": request.param}
    (folder / "config.json").unlink()
    return write_json(folder, config=config)


@cache
def ours(folder: Path, dtype: Dtype) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Token rows [T, H] of all texts, scores of the first with the others, and the ids of all."""
    model = load(str(folder), Placement.choose("cpu", dtype), LoadOptions(max_tokens=MOST))
    engine, ids = ModelEngine(model), ids_of(model, TEXTS)
    rows = token_rows(ask(engine, encode(MULTI), ids))
    compared = scores(ask(engine, score(ScoringMethod.LATE_INTERACTION, 1), ids), len(TEXTS) - 1)[0]
    return np.concatenate(rows), compared, ids


@cache
def their_scores(folder: Path, dtype: torch.dtype) -> np.ndarray:
    """Of transformers' own run in this number format, one text at a time, compared in float32."""
    _, _, ids = ours(folder, "float32")
    model = AutoModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.inference_mode():
        hidden = [model(torch.tensor([text])).last_hidden_state[0].float() for text in ids]
    rows = [torch.nn.functional.normalize(states, dim=1) for states in hidden]
    return np.array([score_of(rows[0], document) for document in rows[1:]])


def test_float16_is_near_float32(folder: Path) -> None:
    """A cosine of 0.999 at least, every token row; scores within 1e-3, or where this processor rounds worse, no further
    off than transformers' own."""
    (exact_rows, exact, _), (rows, compared, _) = ours(folder, "float32"), ours(folder, "float16")
    assert (rows * exact_rows).sum(axis=1).min() >= 0.999
    distance, theirs = (
        (np.abs(numbers - exact) / np.abs(exact)).max() for numbers in (compared, their_scores(folder, torch.float16))
    )
    assert distance <= max(1e-3, 1.5 * theirs)
    assert theirs < 3e-3  # else it would prove nothing


def test_bfloat16_is_as_good_as_transformers_own(folder: Path) -> None:
    """A cosine of 0.999 at least, every token row. Eight bits of mantissa leave a score of a few tokens some
    thousandths off: ours no further than theirs."""
    (exact_rows, exact, _), (rows, compared, _) = ours(folder, "float32"), ours(folder, "bfloat16")
    assert (rows * exact_rows).sum(axis=1).min() >= 0.999
    distance, theirs = (
        np.sqrt(np.mean((numbers - exact) ** 2)) for numbers in (compared, their_scores(folder, torch.bfloat16))
    )
    assert distance <= 1.5 * theirs
    assert np.abs(their_scores(folder, torch.float32) - exact).max() < 1e-4
