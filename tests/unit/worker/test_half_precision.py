"""Late interaction in half precision on real weights, against float32 and against transformers' own half precision."""

import json
import os
import shutil
from dataclasses import dataclass
from functools import cache, cached_property
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
from support.tiny import MULTI, ask, encode, ids_of, score, scores, token_rows

TEXTS = [QUERIES[0], *PASSAGES[:12]]
MOST = 96
"""Tokens of a text, of which all have fewer: the gate runs texts as long as that, slowly in half precision."""
LAYERS = [2, pytest.param(6, marks=pytest.mark.slow)]
"""MiniLM's first two, which load in a third of the time; all of them by `make test-slow`."""


@dataclass(frozen=True)
class Ours:
    """Token rows [T, H] of all texts, scores of the first with the others, and the ids of all."""

    rows: np.ndarray
    scores: np.ndarray
    ids: list[list[int]]


class Cut:
    """A repository of MiniLM's first layers, and what it gives in each number format."""

    def __init__(self, folder: Path, layers: int) -> None:
        self._folder = folder
        shutil.copytree(mini_lm_path(), folder, copy_function=os.symlink)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
        self.ours = cache(self._ours)

    def _ours(self, dtype: Dtype) -> Ours:
        model = load(str(self._folder), Placement.choose("cpu", dtype), LoadOptions(max_tokens=MOST))
        engine, ids = ModelEngine(model), ids_of(model, TEXTS)
        rows = token_rows(ask(engine, encode(MULTI), ids))
        found = scores(ask(engine, score(ScoringMethod.LATE_INTERACTION, 1), ids), len(TEXTS) - 1)[0]
        return Ours(np.concatenate(rows), found, ids)

    @cached_property
    def exact(self) -> Ours:
        return self.ours("float32")

    def their_scores(self, dtype: torch.dtype) -> np.ndarray:
        """Of transformers' own run in this number format, one text at a time, compared in float32."""
        model = AutoModel.from_pretrained(self._folder, dtype=dtype, attn_implementation="eager").eval()
        with torch.inference_mode():
            hidden = [model(torch.tensor([each])).last_hidden_state[0].float() for each in self.exact.ids]
        rows = [torch.nn.functional.normalize(each, dim=1) for each in hidden]
        return np.array([score_of(rows[0], document) for document in rows[1:]])


@pytest.fixture(scope="module", params=LAYERS, ids=lambda layers: f"{layers} layers")
def cut(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cut:
    return Cut(tmp_path_factory.mktemp("minilm") / "cut", request.param)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_keep_their_direction(cut: Cut, dtype: Dtype) -> None:
    """A cosine of 0.999 at least, every token row."""
    assert (cut.ours(dtype).rows * cut.exact.rows).sum(axis=1).min() >= 0.999


def test_float16_scores_are_those_of_float32(cut: Cut) -> None:
    """Within 1e-3 of the score; or where this processor rounds worse, no further off than transformers' own."""
    exact = cut.exact.scores
    own, theirs = (
        (np.abs(each - exact) / np.abs(exact)).max()
        for each in (cut.ours("float16").scores, cut.their_scores(torch.float16))
    )
    assert own <= max(1e-3, 1.5 * theirs)
    assert theirs < 3e-3  # else it would prove nothing


def test_bfloat16_scores_are_as_good_as_transformers_own(cut: Cut) -> None:
    """Eight bits of mantissa leave a score of a few tokens some thousandths off: ours no further than theirs."""
    exact = cut.exact.scores
    own, theirs = (
        np.sqrt(np.mean((each - exact) ** 2))
        for each in (cut.ours("bfloat16").scores, cut.their_scores(torch.bfloat16))
    )
    assert own <= 1.5 * theirs
    assert np.abs(cut.their_scores(torch.float32) - exact).max() < 1e-4
