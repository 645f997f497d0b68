"""Models of random shapes compute in random steps, by the processor's kernels, what PyTorch's own layers compute.

Each seed is a model, a number format and a few sets of jobs. `RANDOM_MODELS=300 pytest -m slow
tests/unit/worker/test_random_steps.py` draws more of them.
"""

import os
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import PieceLimits
from gpu_worker.model.loading import Model, load
from gpu_worker.random_models import synthetic
from shared.errors import ModelRefused
from shared.jobs import Job, JobResult
from support.every_kind import assert_alike, assert_same_bits, numbers_of, vector_jobs, with_all_heads
from support.in_pieces import run_in_steps
from support.native import LIBRARY, needs_kernels, no_kernels
from support.tiny import random_ids, run

pytestmark = [needs_kernels, pytest.mark.slow]
MODELS, SETS = int(os.environ.get("RANDOM_MODELS", "12")), 4
"""Models, and sets of jobs for each."""
MOST = 300
"""Most tokens of a text."""
HEAD_WIDTHS = (16, 32, 40, 48, 64, 80, 96, 128, 256)
"""40 is none that the kernels take: with `--same-bits` it is filled up, else left to PyTorch."""
WIDEST = 384
"""Most numbers of all heads of a layer."""
ENCODERS, DECODERS = ("bert", "nomic_bert", "gte", "jina_embeddings_v3", "modernbert"), ("eurobert", "qwen2", "qwen3")
WINDOWED = ("mistral", "gemma2", "gemma3_text")
BASES = {kind: values for name, (kind, _, values) in reversed(synthetic.SHAPES.items()) if name.startswith("tiny-")}
"""The values of a tiny config of each model type that the installed transformers has."""
FORMATS = [*sorted(str(dtype)[6:] for dtype in LIBRARY.formats), *["int8"] * LIBRARY.int8]
COSINES = {"bfloat16": 0.99, "int8": 0.9}
"""Least cosine of a row to float32's by PyTorch's own layers: random weights magnify what is rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModel:
    """A model type with its config's values, and how it is served."""

    kind: str
    values: dict[str, Any]
    number_format: str
    same_bits: bool
    splade: bool

    @classmethod
    def draw(cls, chance: random.Random) -> "RandomModel":
        kind = chance.choice([each for each in (*ENCODERS, *DECODERS, *WINDOWED) if each in BASES])
        layers, head = chance.randint(1, 3), chance.choice(HEAD_WIDTHS)
        heads = chance.randint(1, min(6, WIDEST // head))
        values: dict[str, Any] = {
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "hidden_size": head * heads,
        }
        values["intermediate_size"] = chance.choice([32, 40, 96, 128, 224, 384])
        if "head_dim" in BASES[kind]:
            shared = chance.choice([each for each in range(1, heads + 1) if heads % each == 0])
            values |= {"head_dim": head, "num_key_value_heads": shared, "hidden_size": heads * chance.choice([32, 64])}
        # Wider weights would magnify from layer to layer what the first one rounds.
        values["initializer_range"] = 1.6 / values["hidden_size"] ** 0.5
        if kind in ("bert", "gte", "jina_embeddings_v3"):
            values["hidden_act"] = chance.choice(["gelu", "gelu_new", "relu", "silu"])
        if kind == "modernbert":
            values["local_attention"] = 2 * chance.randint(1, 40)
        if kind in WINDOWED:
            values["sliding_window"] = chance.randint(1, 80)
        if "layer_types" in BASES[kind]:
            values["layer_types"] = chance.choices(["sliding_attention", "full_attention"], k=layers)
        return cls(
            kind=kind,
            values=values,
            number_format=chance.choice(FORMATS),
            same_bits=chance.random() < 0.2,
            splade=chance.random() < 0.5,
        )

    def load(self, number_format: str, *, same_bits: bool = False) -> Model:
        """The model with every head. Raises ModelRefused where int8 is too far off, or no layer is made for it."""
        dtype, linear = ("float32", "int8") if number_format == "int8" else (number_format, "auto")
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(synthetic.ALL_SHAPES, "drawn", (self.kind, "mean", BASES[self.kind] | self.values))
            patch.setitem(synthetic.SHAPES, "drawn", synthetic.ALL_SHAPES["drawn"])
            patch.setitem(synthetic.NAMES, "drawn", "drawn")
            model = load(
                "random:drawn",
                Placement.choose("cpu", dtype),  # type: ignore[arg-type]
                max_tokens=MOST,
                linear=linear,  # type: ignore[arg-type]
                same_bits=same_bits,
            )
        return with_all_heads(model, self.splade, same_bits)


def random_texts(chance: random.Random, count: int, most: int = MOST) -> list[list[int]]:
    """Most of them are short; some begin as the first one does, or are what it begins with."""
    texts = random_ids(
        [min(most, 1 + int(chance.expovariate(1 / 40))) for _ in range(count)], chance.randrange(1 << 30)
    )
    for text in texts[1:]:
        alike = min(chance.choice([0, 0, 16, MOST]), len(text), len(texts[0]))
        text[:alike] = texts[0][:alike]
    return texts


def random_jobs(chance: random.Random, width: int) -> list[Job]:
    """Some of every kind, for a model with token rows of so many numbers."""
    texts, documents = random_texts(chance, chance.randint(1, 12)), random_texts(chance, chance.randint(2, 6))
    jobs = vector_jobs(texts, random_texts(chance, 3, most=64), documents, width)
    return chance.sample(jobs, chance.randint(3, 8))


def random_limits(chance: random.Random, model: Model) -> PieceLimits:
    """Long texts in pieces, and texts that begin alike together, as far as the model lets them."""
    return PieceLimits(
        longest=0 if model.cutting.refusal else chance.choice([0, 16, 50, 128]),
        text_bytes=model.cutting.text_bytes,
        shares=not model.unshared and chance.random() < 0.5,
        together=chance.choice([0, 64, 1000]),
    )


def run_at_random(chance: random.Random, engine: ModelEngine, jobs: list[Job]) -> list[JobResult]:
    """The jobs' results, computed in pieces, steps and threads by chance."""
    threads = torch.get_num_threads()
    torch.set_num_threads(chance.randint(1, 4))
    engine.cut_texts(random_limits(chance, engine.model))
    try:
        return run_in_steps(engine, jobs, chance.randrange(1 << 30), most_units=chance.choice([1, 3, 20]))
    finally:
        engine.cut_texts(PieceLimits())
        torch.set_num_threads(threads)


def least_cosine(results: list[JobResult], expected: list[JobResult]) -> float:
    """Of all rows of dense and token vectors."""
    cosines = [1.0]
    for ours, theirs in zip(results, expected, strict=True):
        numbers = numbers_of(ours)
        assert all(np.isfinite(rows).all() for rows in numbers.values())
        for name in {"dense", "tokens"} & numbers.keys():
            mine, rows = (
                some[name] / np.linalg.norm(some[name], axis=1)[:, None] for some in (numbers, numbers_of(theirs))
            )
            cosines.append(float((mine * rows).sum(axis=1).min(initial=1)))
    return min(cosines)


@pytest.mark.parametrize("seed", range(MODELS))
def test_random_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 within rounding of PyTorch's own layers; in other formats near them, and as each job gives alone."""
    chance = random.Random(seed)
    drawn = RandomModel.draw(chance)
    print(drawn)
    try:
        engine = ModelEngine(drawn.load(drawn.number_format, same_bits=drawn.same_bits))
    except ModelRefused as refused:
        if drawn.number_format != "int8":
            raise
        pytest.skip(str(refused))
    with monkeypatch.context() as patch:
        no_kernels(patch)
        twin = ModelEngine(drawn.load("float32"))
    for _ in range(SETS):
        jobs = random_jobs(chance, engine.model.encoder.width)
        results, expected = run_at_random(chance, engine, jobs), run(twin, jobs)
        if drawn.number_format == "float32":
            assert_alike(results, expected, "float32")
        else:
            assert least_cosine(results, expected) >= COSINES[drawn.number_format]
        if drawn.same_bits or drawn.number_format != "float32":
            alone = [run(engine, [job])[0] for job in jobs]
            assert_same_bits(results, alone) if drawn.same_bits else assert_alike(results, alone, "bfloat16")
