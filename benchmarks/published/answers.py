"""A server's answers beside those of the model's own code in float32, before anything is timed."""

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModel
from transformers.utils import logging

from benchmarks.load.target import texts_of
from benchmarks.published.driver import COMPARED, PATHS, Rows, body, rows_of
from benchmarks.published.models import PROJECTION
from benchmarks.published.rows import OURS, Row
from benchmarks.workloads import Workload
from harness.random_models.shapes import POOLINGS

REFERENCE, LEAST_COSINE = "the model in float32", "least cosine"
"""What answers are compared with, and the figure by which they agree."""
POOLED: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda hidden: hidden.mean(0, keepdim=True),
    "cls": lambda hidden: hidden[:1],
    "lasttoken": lambda hidden: hidden[-1:],
}
"""How the states [tokens, H] of a text become its row [1, H]."""
MOST_REQUESTS, ENOUGH_TOKENS, MOST_TOKENS = 8, 3000, 9000
"""Requests that are compared: as many, or fewer with as many tokens; most tokens of one."""
LEAST = 0.99
"""Least cosine of our rows to the model's own; below it nothing is measured."""
TIMEOUT = 600.0


def probes(row: Row) -> list[tuple[list[str], tuple[int, ...]]]:
    """Selects the requests that are compared: the texts of each and their tokens. They are the first of each workload
    that are timed; those of a workload with larger requests are left out."""
    workloads = {workload.name + workload.says + str(workload.alike): workload for workload in _workloads(row)}
    return [probe for workload in workloads.values() for probe in _first(workload)]


def _workloads(row: Row) -> list[Workload]:
    workloads = [of.stream.workload for of in row.cases]
    if row.kind == "rerank":  # rows of scores, as long as there are documents, cannot be compared with others
        return workloads[:1]
    return [workload for workload in workloads if sum(workload.requests[0]) <= MOST_TOKENS] or workloads[:1]


def _first(workload: Workload) -> list[tuple[list[str], tuple[int, ...]]]:
    chosen: list[tuple[list[str], tuple[int, ...]]] = []
    for texts, lengths in zip(texts_of(workload, COMPARED), workload.requests, strict=True):
        chosen.append((texts, lengths))
        if len(chosen) == MOST_REQUESTS or sum(sum(counts) for _, counts in chosen) >= ENOUGH_TOKENS:
            break
    return chosen


def answers(row: Row, url: str) -> list[Rows]:
    """Asks a server for the rows of all probes. Raises HTTPError, and ValueError where tokens are counted otherwise."""
    rows: list[Rows] = []
    for texts, lengths in probes(row):
        request = urllib.request.Request(
            f"{url}{PATHS[row.kind]}",
            data=body(row.kind, row.served_name, texts),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            rows += rows_of(row.kind, reply.read(), lengths)
    return rows


def reference(row: Row, folder: Path) -> list[Rows]:
    """Computes rows or scores of all probes by the model's own code in transformers, each text alone, in float32."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # it lists the projection of a ColBERT as unexpected
    encoder = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()  # MiniLM's file says 128 tokens, its settings 256
    requests = [list(_hidden(encoder, tokenizer, texts)) for texts, _ in probes(row)]
    if row.kind == "rerank":
        with safe_open(folder / "model.safetensors", "pt") as tensors:
            projection = tensors.get_tensor(PROJECTION).float()
        return [maxsim([hidden @ projection.T for hidden in texts]).numpy() for texts in requests]
    instruction = row.cases[0].stream.workload.instruction
    pool = POOLED[_pooling(folder)] if row.kind == "dense" else Tensor.clone
    return [pool(hidden[instruction:]).numpy() for texts in requests for hidden in texts]


@torch.inference_mode()
def _hidden(encoder: torch.nn.Module, tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Tensor]:
    """Yields the last states [tokens, H] of each text."""
    for text in texts:
        ids = torch.tensor([tokenizer.encode(text).ids])
        yield encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]


def _pooling(folder: Path) -> str:
    if not (folder / "1_Pooling").is_dir():
        return "mean"  # GritLM
    modes = json.loads((folder / "1_Pooling" / "config.json").read_text())
    return next(name for name, key in POOLINGS.items() if modes.get(key))


def maxsim(rows: Sequence[Tensor]) -> Tensor:
    """Scores documents against the query, the first of `rows` [tokens, D] each: [1, documents]."""
    query, *documents = (torch.nn.functional.normalize(tokens, dim=1) for tokens in rows)
    return torch.stack([(query @ document.T).amax(1).sum() for document in documents])[None]


def agreement(side: str, rows: Sequence[Rows], model: Sequence[Rows]) -> dict[str, float]:
    """Computes the cosines of a side's rows to the model's own, row by row: the mean and the least.

    The least is told a second time after the mean of all rows is subtracted. Random weights make all rows of a model
    alike, so that a server which mixed up its texts would still score a cosine near 1.

    Exits where ours differ. vLLM's figure stands beside its speed.
    """
    left, right = (np.concatenate(list(answered)).astype(np.float64) for answered in (rows, model))
    left, right = (matrix / np.linalg.norm(matrix, axis=1, keepdims=True) for matrix in (left, right))
    cosines = _cosines(left, right)
    figures = {"mean cosine": float(cosines.mean()), LEAST_COSINE: float(cosines.min())}
    if len(right) > 1:
        shared = right.mean(0)
        figures[f"{LEAST_COSINE} without what all rows share"] = float(_cosines(left - shared, right - shared).min())
    if side == OURS and figures[LEAST_COSINE] < LEAST:
        sys.exit(f"{side}: cosines to {REFERENCE} are {figures}, wanted is {LEAST} at least")
    return {name: round(value, 6) for name, value in figures.items()}


def _cosines(left: Rows, right: Rows) -> Rows:
    """Computes the cosines of rows [N, H] pair by pair, [N]."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines: Rows = (left * right).sum(1) / lengths
    return cosines
