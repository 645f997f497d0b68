"""(a) One projection and normalisation over all rows of a step, against a loop over its sequences."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.ablations import lengths
from benchmarks.ablations.ablation import Ablation, Published
from benchmarks.ablations.case import Case
from benchmarks.ablations.conditions import Conditions
from gpu_worker.device.placement import Placement
from gpu_worker.heads.multi_vector import MultiVectorHead
from gpu_worker.model.linear import prepack
from gpu_worker.model.loading import Model, load
from gpu_worker.ragged.batch import Counts, RaggedBatch

WIDTH = 128
ONE, LOOP = "one product a step", "a loop over sequences"


def head_of(width: int, placement: Placement) -> MultiVectorHead:
    """width -> 128 without bias, as a load makes it: prepacked on a CPU."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(width, WIDTH, bias=False)).to(placement.device, placement.dtype)
    head = MultiVectorHead(layers.requires_grad_(False), WIDTH, skip_first=False, mean=False)
    if placement.device.type == "cpu":
        prepack(head)
    return head


def shapes(tokens: int) -> dict[str, Counts]:
    """Steps of about `tokens` tokens: lengths [S] by name."""
    return {
        f"{tokens // 16:,} x 16": np.full(tokens // 16, 16),
        f"{tokens // 512:,} x 512": np.full(tokens // 512, 512),
    }


def case_of(name: str, found: Counts, width: int, placement: Placement, seed: int) -> Case:
    """The head alone, on random hidden states [T, width]; both ways end with one view or tensor [length, 128] each."""
    head = head_of(width, placement)
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(int(found.sum()), width, generator=generator).to(placement.device, placement.dtype)
    counts = found.tolist()

    @torch.inference_mode()
    def one() -> list[Tensor]:
        return list(F.normalize(head(hidden), dim=1).split(counts))

    @torch.inference_mode()
    def loop() -> list[Tensor]:
        return [F.normalize(head(rows), dim=1) for rows in hidden.split(counts)]

    return Case(
        name=f"{name} tokens, {width} -> {WIDTH}",
        given={"sequences": len(found), "tokens": int(found.sum()), "width": width, "dtype": placement.dtype_name},
        ours=ONE,
        variants={ONE: one, LOOP: loop},
        tolerance=1e-5 if placement.dtype is torch.float32 else 1e-2,
        counts={ONE: {"products": 1}, LOOP: {"products": len(found)}},
    )


def whole_step(name: str, found: Counts, model: Model, seed: int) -> Case:
    """The same behind the model's trunk: what the idea is worth where it is used."""
    placement, trunk = model.placement, model.trunk
    head, counts = head_of(trunk.width, placement), found.tolist()
    ids = lengths.texts(found, model.vocabulary_size, seed)
    batch = RaggedBatch.pack(ids, placement.device, trunk.uncounted)

    @torch.inference_mode()
    def one() -> list[Tensor]:
        return list(F.normalize(head(trunk(batch)), dim=1).split(counts))

    @torch.inference_mode()
    def loop() -> list[Tensor]:
        return [F.normalize(head(rows), dim=1) for rows in trunk(batch).split(counts)]

    return Case(
        name=f"{name} tokens, {trunk.width} -> {WIDTH}, behind the trunk of {model.name}",
        given={
            "sequences": len(found),
            "tokens": int(found.sum()),
            "width": trunk.width,
            "dtype": placement.dtype_name,
            "model": model.name,
        },
        ours=ONE,
        variants={ONE: one, LOOP: loop},
        tolerance=1e-4 if placement.dtype is torch.float32 else 2e-2,
        counts={ONE: {"products": 1}, LOOP: {"products": len(found)}},
    )


def measure(conditions: Conditions) -> Iterator[dict[str, Any]]:
    placement = Placement.choose(str(conditions.device))
    made = shapes(placement.step_tokens // (4 if conditions.quick else 1))
    for width in (384, 1024):
        for name, found in made.items():
            yield case_of(name, found, width, placement, conditions.seed).measure(conditions)
    model = load(conditions.model, placement, max_tokens=lengths.LONGEST)
    for name, found in made.items():
        yield whole_step(name, found, model, conditions.seed).measure(conditions)


ABLATION = Ablation(
    letter="a",
    idea="one ragged projection and normalisation a step, against a loop over its sequences",
    how="the same head and the same hidden states; alone, then behind a model's trunk",
    measure=measure,
    published=(
        Published(
            who="vLLM",
            what="Qwen3-Embedding-0.6B token embeddings, 16 prompts a request, 4 clients: the whole service",
            value=55_463,
            unit="tokens/second",
        ),
    ),
)
