"""How often the gate runs a model by its own attention: long texts of deep models take seconds each."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from gpu_worker.model.verify.gate import Reference, take_reference
from gpu_worker.model.verify.probes import Probes

BOTH = [torch.float32, torch.bfloat16]


def reference_with_runs(folder: Path, dtype: torch.dtype) -> tuple[Reference, Counter[tuple[int, ...]], Any]:
    """A reference, how often it ran each shape [B, L] of inputs, and the model."""
    model = AutoModel.from_pretrained(folder, dtype=dtype).eval()
    runs: Counter[tuple[int, ...]] = Counter()

    def count(module: Any, arguments: Any, keywords: dict[str, Any]) -> None:
        runs[tuple(keywords["input_ids"].shape)] += 1

    model.register_forward_pre_hook(count, with_kwargs=True)
    reference = take_reference(model, Probes.of(model.config, 64, (0, 2, 3), limit=64))
    return reference, runs.copy(), model


@pytest.mark.parametrize("dtype", BOTH)
def test_each_text_has_the_states_of_its_own_run(encoder: Path, dtype: torch.dtype) -> None:
    """The longest one too, which runs before all others and keeps the states of that run."""
    reference, _, model = reference_with_runs(encoder, dtype)
    for text, states in zip(reference.probes.texts, reference.states, strict=True):
        with torch.inference_mode():
            alone = model(input_ids=torch.tensor(text)[None].long()).last_hidden_state[0]
        torch.testing.assert_close(states, alone.float(), rtol=0, atol=2e-5 if dtype == torch.float32 else 0.05)


def test_in_half_precision_no_text_is_padded(encoder: Path) -> None:
    """The model's padding noise widens the tolerance of float32 alone. The two attentions are compared in both."""
    longest = (1, 64)
    exact, runs, _ = reference_with_runs(encoder, torch.float32)
    assert exact.noise > 0
    assert sum(runs[shape] for shape in runs if shape[0] > 1) == 1 + exact.probes.padded
    assert runs[longest] == 3
    half, runs, _ = reference_with_runs(encoder, torch.bfloat16)
    assert half.noise == 0
    assert all(batch == 1 for batch, _ in runs)
    assert runs[longest] == 4
