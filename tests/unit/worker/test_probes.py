"""The texts that gates compare reach what a config bounds, and cost no more than they may; a model runs them no more
often than it must, since long texts of deep models take seconds each."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, BertConfig

from gpu_worker.model.verify.gate import Reference, take_reference
from gpu_worker.model.verify.probes import ACCELERATOR, PROCESSOR, ProbeCosts, Probes
from harness.random_models import miniature

WIDTH = 64


def lengths(config: Any, **chosen: Any) -> list[int]:
    return [len(text) for text in Probes.of(config, 512, **chosen).texts]


@pytest.mark.parametrize(
    ("kind", "bound"),
    [("mistral", 16), ("llama4_text", 16), ("longformer", 16), ("t5", 128), ("nystromformer", 64), ("mamba", 4)],
)
def test_lengths_lie_around_what_bounds_attention(kind: str, bound: int) -> None:
    """A window, a chunk, the furthest distance, means of segments, the width of a convolution."""
    assert {bound - 1, bound, bound + 1, 2 * bound + 9} <= set(lengths(miniature.config_of(kind)))


def test_bounds_of_parts_count() -> None:
    """Rotary positions are stretched beyond a number that stands in a table of its own."""
    config = miniature.config_of("llama")
    config.rope_parameters = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 70}
    assert {69, 70, 71, 149} <= set(lengths(config))


def test_the_longest_text_is_among_them() -> None:
    """Where memory and time allow; else the longest that they do, and the user is told."""
    config = BertConfig(hidden_size=WIDTH, num_attention_heads=4, vocab_size=100)
    whole = Probes.of(config, 512, limit=300)
    assert (whole.longest, whole.notice(300)) == (300, "")
    assert whole.notice(301) == "compared at load with texts of up to 300 tokens, not longer"
    small = Probes.of(config, 512, limit=300, costs=ProbeCosts(score_bytes=4 * 4 * 200**2, flops=1e12))
    assert small.longest == 200
    short = Probes.of(config, 512, limit=300, flops_per_token=1.0, costs=ProbeCosts(score_bytes=1 << 30, flops=400.0))
    assert 40 < short.longest < 300


def test_a_step_has_more_tokens_than_a_text_has_positions() -> None:
    """So a model that looks at the step's length where it should look at the text's is found out."""
    probes = Probes.of(BertConfig(vocab_size=100), 512)
    assert sum(len(probes.texts[place]) for place in [*range(len(probes.texts)), *probes.again]) > 512


def test_an_accelerator_that_the_model_fills_leaves_little_for_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (800, 10_000))
    assert ProbeCosts.of(torch.device("cuda")) == ProbeCosts(score_bytes=100, flops=ACCELERATOR.flops)
    assert ProbeCosts.of(torch.device("cpu")) == PROCESSOR


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
