"""Late interaction in half precision on real weights, against float32 and against transformers' own half precision."""

from functools import cache

import numpy as np
import pytest
import torch
from references import mini_lm_path
from tiny import MULTI, ask, encode, ids_of, score, scores, token_rows
from transformers import AutoModel

from demo.passages import PASSAGES, QUERIES
from gpu_worker.device.placement import Dtype, Placement
from gpu_worker.engine import ModelEngine
from gpu_worker.maxsim import reference
from gpu_worker.model.loading import load
from shared.vectors import ScoringMethod

TEXTS = [QUERIES[0], *PASSAGES[:12]]


@cache
def ours(dtype: Dtype) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    """Token rows of all texts, scores of the first with the others, and ids."""
    model = load("minilm", Placement.choose("cpu", dtype))
    engine, ids = ModelEngine(model), ids_of(model, TEXTS)
    rows = token_rows(ask(engine, encode(MULTI), ids))
    found = scores(ask(engine, score(ScoringMethod.LATE_INTERACTION, 1), ids), len(TEXTS) - 1)[0]
    return np.concatenate(rows), found, ids


def their_scores(dtype: torch.dtype, ids: list[list[int]]) -> np.ndarray:
    """Of transformers' own run in this number format, one text at a time, compared in float32."""
    model = AutoModel.from_pretrained(mini_lm_path(), dtype=dtype, attn_implementation="eager").eval()
    with torch.inference_mode():
        hidden = [model(torch.tensor([each])).last_hidden_state[0].float() for each in ids]
    rows = [torch.nn.functional.normalize(each, dim=1) for each in hidden]
    return reference.maxsim(rows[:1], rows[1:]).numpy()[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_keep_their_direction(dtype: Dtype) -> None:
    """A cosine of 0.999 at least, every token row."""
    assert (ours(dtype)[0] * ours("float32")[0]).sum(axis=1).min() >= 0.999


def test_float16_scores_are_those_of_float32() -> None:
    """Within 1e-3 of the score; or where this processor rounds worse, no further off than transformers' own."""
    _, exact, ids = ours("float32")
    own, theirs = (
        (np.abs(each - exact) / np.abs(exact)).max() for each in (ours("float16")[1], their_scores(torch.float16, ids))
    )
    assert own <= max(1e-3, 1.5 * theirs)
    assert theirs < 3e-3  # else it would prove nothing


def test_bfloat16_scores_are_as_good_as_transformers_own() -> None:
    """Eight bits of mantissa leave a score of a few tokens some thousandths off: ours no further than theirs."""
    _, exact, ids = ours("float32")
    own, theirs = (
        np.sqrt(np.mean((each - exact) ** 2)) for each in (ours("bfloat16")[1], their_scores(torch.bfloat16, ids))
    )
    assert own <= 1.5 * theirs
    assert np.abs(their_scores(torch.float32, ids) - exact).max() < 1e-4
