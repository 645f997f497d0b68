"""The answers of all sides beside each other, and beside the model's own code in float32, before anything is timed.

Random weights make all rows of a model alike, so that a server which mixed up its texts would still score a cosine near
1. Cosines are therefore told a second time without what all rows share: after the mean of all rows is subtracted.
"""

import json
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import AutoModel
from transformers.utils import logging

from benchmarks.load.target import texts_of
from benchmarks.published.asking import PATHS, Rows, body, rows_of
from benchmarks.published.driver import OFFSET
from benchmarks.published.models import POOLINGS
from benchmarks.published.rows import OURS, Row, model_name

REFERENCE = "the model in float32"
MOST_REQUESTS, ENOUGH_TOKENS = 8, 3000
"""Requests that are compared: as many, or fewer with as many tokens."""
LEAST = 0.99
"""Least cosine of our rows to the model's own; below it nothing is measured."""
TIMEOUT = 600.0


def probes(row: Row) -> list[tuple[list[str], tuple[int, ...]]]:
    """Selects the requests that are compared: the texts of each and their tokens. They are the first that are timed."""
    workload = row.cases[0].stream.workload
    chosen: list[tuple[list[str], tuple[int, ...]]] = []
    for texts, lengths in zip(texts_of(workload, OFFSET), workload.requests, strict=True):
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
            data=body(row.kind, model_name(row.model), texts),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            rows += rows_of(row.kind, reply.read(), lengths)
    return rows


def reference(row: Row, folder: Path) -> list[Rows]:
    """Computes the rows of all probes by the model's own code in transformers, a text at a time, in float32."""
    logging.disable_progress_bar()
    encoder = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    modes = json.loads((folder / "1_Pooling" / "config.json").read_text())
    pooling = next(name for name, key in POOLINGS.items() if modes.get(key))
    texts = [text for request, _ in probes(row) for text in request]
    return list(_reference_rows(encoder, tokenizer, texts, "" if row.kind == "tokens" else pooling))


@torch.inference_mode()
def _reference_rows(
    encoder: torch.nn.Module, tokenizer: Tokenizer, texts: Sequence[str], pooling: str
) -> Iterator[Rows]:
    """Yields the rows [rows, H] of each text. `pooling`: how they become one; "" where each token has its own."""
    for text in texts:
        ids = torch.tensor([tokenizer.encode(text).ids])
        hidden = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        pooled = {"mean": hidden.mean(0, keepdim=True), "cls": hidden[:1], "lasttoken": hidden[-1:], "": hidden}
        yield pooled[pooling].numpy()


def agreement(rows: Sequence[Rows], others: Sequence[Rows]) -> dict[str, float]:
    """Computes cosines of rows to others, row by row: the mean and the least, and the least without their mean."""
    left, right = (np.concatenate(list(side)).astype(np.float64) for side in (rows, others))
    left, right = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (left, right))
    cosines = _cosines(left, right)
    figures = {"mean": float(cosines.mean()), "least": float(cosines.min())}
    if len(right) > 1:
        shared = right.mean(0)
        figures["least without what all rows share"] = float(_cosines(left - shared, right - shared).min())
    return {name: round(value, 6) for name, value in figures.items()}


def _cosines(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Computes the cosines of rows [N, H] pair by pair, [N]."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines: npt.NDArray[np.float64] = (left * right).sum(1) / lengths
    return cosines


def compared(answered: Mapping[str, Sequence[Rows]], model: Sequence[Rows]) -> dict[str, dict[str, dict[str, float]]]:
    """Tells how each side agrees with the model's own code, and with us. Exits where we do not agree with the model.

    A server that differs from the model is told, not stopped: its figure stands beside its speed.
    """
    agreements = {side: {REFERENCE: agreement(rows, model)} for side, rows in answered.items()}
    for side, others in agreements.items():
        if OURS in answered and side != OURS:
            others[OURS] = agreement(answered[side], answered[OURS])
        if side.startswith(OURS) and others[REFERENCE]["least"] < LEAST:
            sys.exit(f"{side}: cosines to {REFERENCE} are {others[REFERENCE]}, wanted is {LEAST} at least")
    return agreements
