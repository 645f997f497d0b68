"""The model of a row: its files, which both servers read, and what its own code in float32 answers.

The folder is that of a sentence-transformers model: config, weights, tokenizer, `modules.json` and a pooling; or that
of a Stanford ColBERT, with a projection; or GritLM's, which has neither. MiniLM has its real weights in a package.
Answers of a server are compared with the model's own before anything is timed.
"""

import base64
import json
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModel
from transformers.utils import logging

from benchmarks.benchmark import OURS, cosines
from benchmarks.load.target import body, texts_of
from benchmarks.ours import Placement
from benchmarks.published.rows import COMPARED, PATHS, Row
from benchmarks.workloads import MINILM, RANDOM, Kind, Lengths, minilm_folder
from harness.random_models import synthetic, writing
from harness.random_models.shapes import POOLINGS, Heads

COLBERT, PROJECTION = "HF_ColBERT", "linear.weight"
"""The class that config.json of a Stanford ColBERT names, and the tensor of its projection."""
REFERENCE, LEAST_COSINE = "the model in float32", "least cosine"
"""What answers are compared with, and the figure by which they agree."""
MOST_REQUESTS, ENOUGH_TOKENS, MOST_TOKENS = 8, 3000, 9000
"""Requests that are compared: as many, or fewer with as many tokens; most tokens of one."""
LEAST = 0.99
"""Least cosine of our rows to the model's own; below it nothing is measured."""
TIMEOUT = 600.0
Rows = npt.NDArray[np.float32]


def written(row: Row, folder: Path) -> Path:
    """Writes the files of a row's model into a folder, unless it is MiniLM; gives the folder that has them."""
    if row.model == MINILM:
        return minilm_folder()
    config, heads = synthetic.shape_of(row.model.removeprefix(RANDOM))
    if row.layers:
        synthetic.with_layers(config, row.layers)
    if "roberta" in config.model_type:
        config.position_embedding_type = "absolute"  # published files say so, and vLLM reads it
    placement = Placement(device=torch.device("cpu"), dtype=getattr(torch, row.dtype))
    writing.write(folder, config, Heads() if row.projected else heads, placement, row.max_tokens)
    if row.projected:
        _project(folder, config.hidden_size, row.projected)
    return folder


def _project(folder: Path, width: int, projected: int) -> None:
    """Names the tensors of a BERT encoder as Stanford ColBERT does, and adds its projection, with seeded numbers."""
    file, config = folder / "model.safetensors", folder / "config.json"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(file).items()}
    projection = torch.randn(projected, width, generator=torch.Generator().manual_seed(projected)) / width**0.5
    tensors[PROJECTION] = projection.to(next(iter(tensors.values())).dtype)
    save_file(tensors, file, metadata={"format": "pt"})
    # without the width: vLLM 0.32 does not start where it is told
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": [COLBERT]}, indent=1) + "\n")


def probes(row: Row) -> list[tuple[list[str], Lengths]]:
    """Selects the requests that are compared: the texts of each and their tokens. They are the first of each workload
    that are timed; those of a workload with larger requests are left out, as rows of scores have other lengths."""
    every = {case.workload.says + str(case.workload.alike): case.workload for case in row.cases}
    first, *others = every.values()
    small = [workload for workload in others if sum(workload.requests[0]) <= MOST_TOKENS and row.kind != "rerank"]
    selected: list[tuple[list[str], Lengths]] = []
    for workload in (first, *small):
        tokens, requests = 0, zip(texts_of(workload, COMPARED), workload.requests, strict=True)
        for texts, lengths in islice(requests, MOST_REQUESTS):
            selected += [(texts, lengths)] if tokens < ENOUGH_TOKENS else []
            tokens += sum(lengths)
    return selected


def answers(row: Row, url: str) -> list[Rows]:
    """Asks a server for the rows of all probes. Raises HTTPError, and ValueError where tokens are counted otherwise."""
    rows: list[Rows] = []
    for texts, lengths in probes(row):
        content, headers = body(row.kind, row.served_name, texts), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}{PATHS[row.kind]}", data=content, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            rows += rows_of(row.kind, json.load(reply), lengths)
    return rows


def rows_of(kind: Kind, reply: Any, lengths: Sequence[int]) -> list[Rows]:
    """Reads the rows [rows, dimensions] of each text, or the scores [1, documents] of a rerank in the order sent.

    `lengths`: tokens of each text. Raises ValueError where the server counted other tokens than the texts have.
    """
    if kind == "rerank":
        scores = {result["index"]: result["relevance_score"] for result in reply["results"]}
        return [np.array([[scores[number] for number in range(len(lengths) - 1)]], dtype=np.float32)]
    if (counted := reply["usage"]["prompt_tokens"]) != sum(lengths):
        raise ValueError(f"the texts have {sum(lengths)} tokens, and the server counted {counted}")
    ordered = sorted(reply["data"], key=lambda entry: entry["index"])
    field, counts = ("data", lengths) if kind == "tokens" else ("embedding", [1] * len(lengths))
    values = [np.frombuffer(base64.b64decode(entry[field]), dtype="<f4") for entry in ordered]
    return [value.reshape(count, -1) for value, count in zip(values, counts, strict=True)]


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
    instruction, pooling = row.cases[0].workload.instruction, _pooling(folder) if row.kind == "dense" else ""
    return [_pooled(hidden[instruction:], pooling).numpy() for texts in requests for hidden in texts]


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


def _pooled(hidden: Tensor, pooling: str) -> Tensor:
    """Pools the states [tokens, H] of a text to its row [1, H]; without a pooling all of them are rows."""
    chosen = {"cls": hidden[:1], "lasttoken": hidden[-1:], "mean": hidden.mean(0, keepdim=True)}
    return chosen.get(pooling, hidden)


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
    left, right = (np.concatenate(list(side_rows)).astype(np.float64) for side_rows in (rows, model))
    left, right = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (left, right))
    each_cosine = cosines(left, right)
    figures = {"mean cosine": float(each_cosine.mean()), LEAST_COSINE: float(each_cosine.min())}
    if len(right) > 1:
        shared = right.mean(0)
        figures[f"{LEAST_COSINE} without what all rows share"] = float(cosines(left - shared, right - shared).min())
    if side == OURS and figures[LEAST_COSINE] < LEAST:
        sys.exit(f"{side}: cosines to {REFERENCE} are {figures}, wanted is {LEAST} at least")
    return {name: round(value, 6) for name, value in figures.items()}
