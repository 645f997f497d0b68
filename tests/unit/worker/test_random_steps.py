"""Models of random shapes compute in random steps, by the processor's kernels, what PyTorch's own layers compute.

A seed is a model of one kind in one number format, and a few sets of jobs. `RANDOM_MODELS=300 pytest -m slow
tests/unit/worker/test_random_steps.py` draws more of them.
"""

import os
import random
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions
from harness.random_models import synthetic
from harness.random_models.shapes import pooled
from harness.random_models.writing import write
from shared.errors import ModelRefused
from shared.jobs import Job, JobResult
from support.every_kind import assert_same_bits, numbers_of, vector_jobs, with_all_heads
from support.in_pieces import cut_texts, run_in_steps
from support.native import LIBRARY, needs_kernels, no_kernels
from support.tiny import random_ids, run, sparse_rows

pytestmark = [needs_kernels, pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
KINDS = ("bert", "nomic_bert", "gte", "jina_embeddings_v3", "modernbert", "eurobert", "qwen2", "qwen3")
KINDS += ("mistral", "gemma2", "gemma3_text")
WINDOWED = KINDS[-3:]
FORMATS = ("float32", "int8", "bfloat16")
"""A processor without one of them runs float32 in its place."""
MODELS, SETS = int(os.environ.get("RANDOM_MODELS", len(KINDS) * len(FORMATS))), 4
"""Models, and sets of jobs for each."""
MOST = 300
"""Most tokens of a text."""
HEAD_WIDTHS, WIDEST = (16, 32, 40, 48, 64, 80, 96, 128, 256), 384
"""Numbers of a head, and the most of all heads of a layer. 40 is none that the kernels take: it is left to
PyTorch."""
FITTING = 32
"""Layers run whole by the kernels where heads have a multiple of 16 numbers, and hidden states, the inner layer, all
heads and all heads of keys a multiple of this."""
BASES = {kind: values for name, (kind, _, values) in reversed(synthetic.SHAPES.items()) if name.startswith("tiny-")}
"""The values of a tiny config of each model type that the installed transformers has."""
UNIT, OTHER = 1e-5, 1e-4
"""How far float32's rows may be off: those of unit length, and scores and others as a share of their largest number."""
COSINES = {"bfloat16": 0.95, "int8": 0.9}
"""Least cosine of a row to float32's by PyTorch's own layers."""
NOT_NATIVE = 0.8
"""The same of models that do not run by the kernels: random weights magnify what PyTorch's own bfloat16 rounds."""
COSINE_ALONE = 0.98
"""Least cosine to the row that the same engine gives a job by itself; a rounding may fall otherwise there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModel:
    """A model type with its config's values, and how it is served."""

    kind: str
    values: dict[str, Any]
    number_format: str
    splade: bool

    @classmethod
    def draw(cls, seed: int, chance: random.Random) -> "RandomModel":
        """Kinds come in turn, each in one format after the other; the rest is by chance, alike on all processors."""
        kind, number_format = KINDS[seed % len(KINDS)], FORMATS[seed // len(KINDS) % len(FORMATS)]
        layers, head = chance.randint(1, 3), chance.choice(HEAD_WIDTHS)
        heads = chance.randint(1, min(6, WIDEST // head))
        values: dict[str, Any] = {
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "hidden_size": head * heads,
        }
        values["intermediate_size"] = chance.choice([32, 40, 96, 128, 224, 384])
        if "head_dim" in BASES.get(kind, ()):
            shared = chance.choice([count for count in range(1, heads + 1) if heads % count == 0])
            values |= {"head_dim": head, "num_key_value_heads": shared, "hidden_size": heads * chance.choice([32, 64])}
        # Wider weights would magnify from layer to layer what the first one rounds.
        values["initializer_range"] = 1.6 / values["hidden_size"] ** 0.5
        if kind in ("bert", "gte", "jina_embeddings_v3"):
            values["hidden_act"] = chance.choice(["gelu", "gelu_new", "relu", "silu"])
        if kind == "modernbert":
            values["local_attention"] = 2 * chance.randint(1, 40)
        if kind in WINDOWED:
            values["sliding_window"] = chance.randint(1, 80)
        if "layer_types" in BASES.get(kind, ()):
            values["layer_types"] = chance.choices(["sliding_attention", "full_attention"], k=layers)
        lacking = LIBRARY.missing if number_format == "int8" else getattr(torch, number_format) not in LIBRARY.formats
        return cls(
            kind=kind,
            values=values,
            number_format="float32" if lacking else number_format,
            splade=chance.random() < 0.5,
        )

    @property
    def fits(self) -> bool:
        """Whether the kernels take whole layers of these widths."""
        heads = self.values["num_attention_heads"], self.values.get("num_key_value_heads", FITTING)
        head = self.values.get("head_dim", self.values["hidden_size"] // heads[0])
        widths = [self.values["hidden_size"], self.values["intermediate_size"], *(head * count for count in heads)]
        return head % 16 == 0 and all(width % FITTING == 0 for width in widths)

    def load(self, number_format: str) -> Model:
        """The model with every head. Raises ModelRefused where int8 is too far off, or no layer fits."""
        dtype, linear = ("float32", "int8") if number_format == "int8" else (number_format, "auto")
        config = AutoConfig.for_model(self.kind, **(BASES[self.kind] | self.values))
        with TemporaryDirectory() as folder:
            write(Path(folder), config, pooled("mean", config.hidden_size))
            model = load(
                folder,
                Placement.choose("cpu", dtype),  # type: ignore[arg-type]
                LoadOptions(max_tokens=MOST, linear=linear),  # type: ignore[arg-type]
            )
        return with_all_heads(model, self.splade)

    def engine(self) -> ModelEngine:
        """With the kernels. Skips the test where the gate has a good reason to refuse int8."""
        try:
            model = self.load(self.number_format)
        except ModelRefused as refused:
            near = re.search(r"cosine ([.\d]+) over tokens, ([.\d]+) over texts", str(refused))
            if self.number_format == "int8" and near and min(map(float, near.groups())) > COSINES["int8"]:
                pytest.skip(f"random weights magnify what int8 rounds: {refused}")
            if self.number_format == "int8" and not self.fits and "no linear layer that fits" in str(refused):
                pytest.skip(str(refused))
            raise
        assert not self.fits or (model.native_layers and not model.other_bits)
        return ModelEngine(model)


def random_texts(chance: random.Random, count: int, most: int = MOST) -> list[list[int]]:
    """Most of them are short; some begin as the first one does, or are a prefix of it."""
    texts = random_ids(
        [min(most, 1 + int(chance.expovariate(1 / 40))) for _ in range(count)], chance.randrange(1 << 30)
    )
    for text in texts[1:]:
        alike = min(chance.choice([0, 0, 16, MOST]), len(text), len(texts[0]))
        text[:alike] = texts[0][:alike]
    return texts


def random_jobs(chance: random.Random, width: int) -> list[Job]:
    """Some of every kind, for a model with token rows of so many numbers; none whose ties may fall otherwise."""
    texts, documents = random_texts(chance, chance.randint(1, 12)), random_texts(chance, chance.randint(2, 6))
    jobs = vector_jobs(texts, random_texts(chance, 3, most=64), documents, width)
    return chance.sample([job for job in jobs if not getattr(job.work, "sparse_top_k", 0)], chance.randint(3, 8))


def random_limits(chance: random.Random, model: Model) -> dict[str, Any]:
    """Long texts in pieces, and texts that begin alike together, as far as the model lets them."""
    longest, shares, together = chance.choice([0, 16, 50, 128]), chance.random() < 0.5, chance.choice([0, 64, 1000])
    return {
        "longest": 0 if model.whole_texts else longest,
        "token_bytes": model.token_bytes or 1,
        "shares": shares and not model.unshared,
        "together": together,
    }


def run_at_random(chance: random.Random, engine: ModelEngine, jobs: list[Job]) -> list[JobResult]:
    """The jobs' results, computed in pieces, steps and threads by chance."""
    torch.set_num_threads(chance.randint(1, 4))
    with cut_texts(engine, **random_limits(chance, engine.model)):
        return run_in_steps(engine, jobs, chance.randrange(1 << 30), most_units=chance.choice([1, 3, 20]))


def rows_of(result: JobResult) -> dict[str, np.ndarray]:
    """All numbers of a result, as rows by name; a sparse vector is a row with zeros."""
    assert result.dense or result.tokens or result.sparse or len(result.scores)
    rows = numbers_of(result) | ({"sparse": sparse_rows(result)} if result.sparse else {})
    return {name: some for name, some in rows.items() if some.size}


def assert_close(results: list[JobResult], expected: list[JobResult], least: float | None) -> None:
    """All numbers within rounding; where a `least` cosine is given, rows by it, and all scores of a job by one."""
    for ours, theirs in zip(results, expected, strict=True):
        assert (ours.row_lengths, ours.token_ids) == (theirs.row_lengths, theirs.token_ids)
        mine = rows_of(ours)
        for name, rows in rows_of(theirs).items():
            if least is None:
                unit = name in ("dense", "tokens") and np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-3)
                assert np.abs(mine[name] - rows).max() <= (UNIT if unit else OTHER * max(1, np.abs(rows).max())), name
                continue
            assert np.isfinite(rows).all()
            products, norms = ((a * b).sum(axis=1) for a, b in ((mine[name], rows), (mine[name], mine[name])))
            lengths = np.sqrt(norms * (rows * rows).sum(axis=1))
            assert (products >= least * lengths - 1e-6).all(), (name, (products / np.maximum(lengths, 1e-9)).min())


@pytest.mark.parametrize("seed", range(MODELS))
def test_random_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 within rounding of PyTorch's own layers, in other formats near them; and as each job gives alone, to
    the bit where the model's layers run by the kernels."""
    chance = random.Random(seed)
    drawn = RandomModel.draw(seed, chance)
    if drawn.kind not in BASES:
        pytest.skip(f"the installed transformers has no {drawn.kind}")
    print(drawn)
    engine = drawn.engine()
    with monkeypatch.context() as patch:
        no_kernels(patch)
        twin = ModelEngine(drawn.load("float32"))
    assert not twin.model.native_layers
    least = COSINES.get(drawn.number_format)
    if least is not None and not engine.model.native_layers:
        least = NOT_NATIVE
    for _ in range(SETS):
        jobs = random_jobs(chance, engine.model.encoder.width)
        results, expected = run_at_random(chance, engine, jobs), run(twin, jobs)
        assert_close(results, expected, least)
        alone = [run(engine, [job])[0] for job in jobs]
        if not engine.model.other_bits:
            assert_same_bits(results, alone)
        elif drawn.number_format != "float32":
            assert_close(results, alone, COSINE_ALONE)
