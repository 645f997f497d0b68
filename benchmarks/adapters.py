"""Texts of 1, 4 and 16 LoRA adapters mixed in one step, against texts without: MiniLM's shape, rank 16.

Every linear layer of the encoder is adapted. "none beside 16" are texts without an adapter where 16 are loaded: their
layers run as transformers wrote them, since the processor's kernels for whole layers know no adapters.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks import ours
from benchmarks.benchmark import OURS, Options
from benchmarks.rounds import Figures, Turn
from benchmarks.workloads import MINILM, Ids, lognormal, token_ids

OUR_SIDE, RATE, COMPARED = OURS, "tokens/s", ("tokens/s",)
PEERS: Mapping[str, tuple[str, ...]] = {}
RANK, COUNTS = 16, (1, 4, 16)
WIDTH, INNER, LAYERS = 384, 1536, 6
PLACES = {
    **{f"attention.self.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")},
    "attention.output.dense": (WIDTH, WIDTH),
    "intermediate.dense": (WIDTH, INNER),
    "output.dense": (INNER, WIDTH),
}
"""Inputs and outputs of MiniLM's linear layers, by their names in a layer."""
TEXTS = {"64 texts, lognormal": lognormal(64, longest=256), "16 texts of 16 tokens": (16,) * 16}


def write_adapter(folder: Path, seed: int) -> str:
    """Writes an adapter of all linear layers of the encoder, in PEFT's files."""
    generator, tensors = torch.Generator().manual_seed(seed), dict[str, Any]()
    for layer in range(LAYERS):
        for name, (inputs, outputs) in PLACES.items():
            for role, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                numbers = 0.02 * torch.randn(shape, generator=generator)
                tensors[f"base_model.model.encoder.layer.{layer}.{name}.lora_{role}.weight"] = numbers
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": r"encoder\..*(query|key|value|dense)",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)


def turn(engine: ours.Ours, texts: Sequence[Ids], adapters: Sequence[str]) -> Figures:
    """Embeds each text as a job of its own. They take turns through the adapters, in steps as the worker makes them."""
    jobs = [
        replace(ours.job([text]), model=adapters[number % len(adapters)] if adapters else "")
        for number, text in enumerate(texts)
    ]
    start = time.perf_counter()
    engine.run(jobs)
    return {"tokens/s": sum(map(len, texts)) / (time.perf_counter() - start)}


@contextmanager
def turns(options: Options) -> Iterator[dict[str, dict[str, Turn]]]:
    """Loads the model without adapters and with all of them; yields the turns."""
    torch.set_num_threads(options.threads)
    root = options.folder / f"adapters-{time.monotonic_ns()}"
    root.mkdir()
    folders = {f"adapter-{seed}": write_adapter(root / f"adapter-{seed}", seed) for seed in range(max(COUNTS))}
    adapted = ours.Ours(MINILM, adapters=folders)
    sides: dict[str, tuple[ours.Ours, list[str]]] = {OURS: (ours.Ours(MINILM), [])}
    sides[f"none beside {max(COUNTS)}"] = (adapted, [])
    for number in COUNTS:
        sides[f"{number} mixed"] = (adapted, list(adapted.adapters)[:number])
    yield {
        f"{title}, float32": {
            side: partial(turn, side_engine, token_ids(lengths, vocabulary=1000), adapters)
            for side, (side_engine, adapters) in sides.items()
        }
        for title, lengths in TEXTS.items()
    }
