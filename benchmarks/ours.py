"""The worker's engine in this process, driven as the scheduler drives it: in one thread, without services.

Of the benchmarks this file and `our_kernels.py` alone depend on the worker's internals. It needs torch, transformers
and numpy only.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.workloads import RANDOM, Ids, Kind, Workload, token_ids
from gpu_worker.device.memory import keep_freed_memory
from gpu_worker.device.placement import Dtype
from gpu_worker.device.placement import Placement as Placement  # re-exported to the other benchmarks
from gpu_worker.device.transfer import Upload
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.step.step import Step
from gpu_worker.model import loading
from gpu_worker.model.native.packed_linear import BlockedLinear
from gpu_worker.model.source import LoadOptions
from gpu_worker.model.tune import linear
from gpu_worker.model.tune.graphs import GraphSettings
from gpu_worker.model.tune.linear import NativeLinear
from gpu_worker.repository import weights
from gpu_worker.repository.recipe import Recipe
from gpu_worker.schedule.fair_queue import FairQueue
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.startup.trials import choose_step, warm_up_jobs
from harness.random_models import synthetic, writing
from harness.synchronous_driver import advance
from shared.errors import SelvageError
from shared.jobs import Encode, Job, JobResult, RaggedTokens, Score
from shared.vectors import Layout, OutputKind, ScoringMethod

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished job: its number, the seconds since it was submitted, its tokens, and its result."""

    job: int
    seconds: float
    tokens: int
    result: JobResult


class Ours:
    """A loaded engine, warmed up as before the worker serves, and the worker's own scheduler around it."""

    def __init__(
        self,
        name: str,
        *,
        dtype: Dtype = "float32",
        device: str = "cpu",
        linear: linear.Linear = "auto",
        max_tokens: int = 0,
    ) -> None:
        """Loads a model. Raises ModelRefused."""
        keep_freed_memory()  # as the worker does
        place = Placement.choose(device, dtype)
        graphs = None if place.device.type == "cpu" else GraphSettings(step_tokens=place.step_tokens)
        with _without_weights(name) as folder:
            self.model = loading.load(folder, place, LoadOptions(max_tokens=max_tokens, graphs=graphs, linear=linear))
        self._submitted: dict[int, tuple[float, int]] = {}
        self._ids, self._engine = count(), ModelEngine(self.model)
        self._step_tokens = choose_step(self.model, place.step_seconds)[1].tokens
        self._scheduler = Scheduler(self._engine, step_tokens=self._step_tokens, queued_tokens=sys.maxsize)
        self.run(list(warm_up_jobs(self.model)))  # one job of every kind

    def __len__(self) -> int:
        """The number of jobs that are not answered yet."""
        return len(self._submitted)

    def submit(self, job: Job) -> None:
        """Submits a job under a new id."""
        identity = next(self._ids)
        self._submitted[identity] = (time.perf_counter(), job.tokens.total)
        self._scheduler.submit(replace(job, id=identity))

    def step(self) -> list[Answer]:
        """Takes the next action and gives the answers that it ended. Raises the error of a job that failed."""
        return [self._answer(done.id, done.outcome) for done in advance(self._scheduler)]

    def _answer(self, identity: int, outcome: JobResult | SelvageError) -> Answer:
        if isinstance(outcome, SelvageError):
            raise outcome
        start, tokens = self._submitted.pop(identity)
        return Answer(job=identity, seconds=time.perf_counter() - start, tokens=tokens, result=outcome)

    def run(self, jobs: Sequence[Job]) -> list[Answer]:
        """Submits all jobs at once and runs them; gives answers in the order of the jobs."""
        for job in jobs:
            self.submit(job)
        answers: list[Answer] = []
        while len(self):
            answers += self.step()
        return sorted(answers, key=lambda answer: answer.job)

    def embed(self, texts: Sequence[Ids]) -> Rows:
        """Embeds texts as one job: unit vectors [S, D]."""
        dense = self.run([job(texts)])[0].result.dense
        assert dense is not None
        return np.frombuffer(dense.data, dtype="<f4").reshape(len(texts), -1)

    def jobs(self, workload: Workload, seed: int) -> list[Job]:
        """Makes a job of each request of the workload, with random ids."""
        vocabulary = self.model.vocabulary_size
        return [
            job(token_ids(lengths, seed + number, vocabulary), workload.kind, workload.instruction)
            for number, lengths in enumerate(workload.requests)
        ]

    def encoder_seconds(self, texts: Sequence[Ids]) -> float:
        """Measures the seconds of the encoder alone over all texts, in the steps that one job of them would take."""
        opened = self._engine.open(job(texts, "tokens" if self.model.heads.multi_vector else "dense"))
        budget = self._step_tokens
        queue = FairQueue[int](quantum=budget)
        queue.add_job(0, opened.costs)
        encoder, device = self.model.encoder, self.model.placement.device
        start = time.perf_counter()
        with torch.inference_mode():
            while queue.waiting_tokens:
                units, upload = queue.next_step(budget)[0], Upload(device)
                selections = [opened.selection(units.start, units.stop)]
                step = Step.pack(selections, device, encoder.uncounted, encoder.token_types, upload)
                assert step.batch is not None
                upload.send()
                encoder(step.batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    @property
    def linear_flops(self) -> float:
        """Operations a token of the encoder's linear layers, without a pooler, which is not run; a multiplication and
        an addition are two."""
        kinds = nn.Linear | linear.PrepackedLinear | BlockedLinear | NativeLinear
        modules = self.model.encoder.model.named_modules()
        layers: list[Any] = [layer for name, layer in modules if isinstance(layer, kinds) and "pooler" not in name]
        return 2.0 * sum(int(layer.in_features) * int(layer.out_features) for layer in layers)


def job(texts: Sequence[Ids], kind: Kind = "dense", instruction: int = 0) -> Job:
    """Builds the job that the frontend would send for these texts. A rerank's first text is its query."""
    output, late = OutputKind.MULTI_VECTOR if kind == "tokens" else OutputKind.DENSE, ScoringMethod.LATE_INTERACTION
    encode = Encode(outputs=frozenset({output}), normalize=True, normalize_tokens=True)
    score = Score(method=late, layout=Layout.MATRIX, queries=1, unit_rows=True, mean=False)
    tokens = RaggedTokens(ids=b"".join(text.tobytes() for text in texts), lengths=tuple(map(len, texts)))
    prompts = (instruction,) * len(texts) if instruction else ()
    return Job(id=0, work=score if kind == "rerank" else encode, tokens=tokens, prompt_lengths=prompts)


@contextmanager
def written(model: str, device: str = "cpu", *, encoder: bool = True) -> Iterator[str]:
    """Gives what a worker of `device` is told for a workload's model: of a `random:` shape a folder, until the end.

    `encoder`: with its weights.
    """
    if not model.startswith(RANDOM):
        yield model
        return
    with TemporaryDirectory() as folder:
        name = model.removeprefix(RANDOM)
        if encoder:
            yield str(writing.write_named(name, Path(folder) / name, placement=Placement.choose(device)))
        else:
            yield str(writing.write_without_weights(name, Path(folder) / name))


@contextmanager
def _without_weights(model: str) -> Iterator[str]:
    """As `written`, but the weights are made where the worker would read them: on its device, in its format."""

    def made(folder: Path, recipe: Recipe, placement: Placement, trust_remote_code: bool) -> tuple[Any, str]:
        config = weights.config_of(folder, recipe, trust_remote_code)
        return synthetic.build(config, recipe.weights_of, placement).eval(), ""

    synthetic_weights = patch.object(weights, "load", made) if model.startswith(RANDOM) else nullcontext()
    with written(model, encoder=False) as folder, synthetic_weights:
        yield folder
