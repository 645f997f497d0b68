"""sentence-transformers in a Python of its own; arguments: a folder, and how many processes its pool has, if any."""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.peers.answering import Make, answer, children_seconds, padded, texts
from benchmarks.workloads import MAX_TOKENS

Ids = npt.NDArray[np.int32]
Rows = npt.NDArray[np.float32]


def embed(model: SentenceTransformer, all_texts: list[Ids], batch_size: int) -> Rows:
    """Does what `encode` does after tokenising: sorts by length, longest first, pads each batch, runs the modules.

    Gives normalised rows [S, 384] in the order of the texts.
    """
    rows = np.empty((len(all_texts), 384), dtype=np.float32)
    with torch.inference_mode():
        for chosen, ids, mask in padded(all_texts, batch_size):
            inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            batch = {name: torch.from_numpy(array) for name, array in inputs.items()}
            rows[chosen] = model(batch)["sentence_embedding"].numpy()
    return rows


def file_to_file(model: SentenceTransformer, pool: Any, source: str, target: str) -> Rows:
    """Embeds the texts of a JSONL file by `encode`, into a Parquet file with their ids."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [json.loads(line) for line in Path(source).read_text().splitlines()]
    rows = np.asarray(model.encode([record["text"] for record in records], pool=pool))
    dense = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    pq.write_table(pa.table({"id": [record["id"] for record in records], "dense": dense}), target)
    return rows


def started(model: SentenceTransformer, processes: int) -> Any:
    """Starts a pool and waits until its processes have loaded: until they use no more CPU."""
    pool, spent = model.start_multi_process_pool(["cpu"] * processes), 0.0
    while spent != (spent := children_seconds()):
        time.sleep(1.0)
    return pool


if __name__ == "__main__":
    loaded = SentenceTransformer(sys.argv[1], device="cpu")
    loaded.max_seq_length = MAX_TOKENS  # as the others have it
    pool = started(loaded, int(sys.argv[2])) if len(sys.argv) > 2 else None
    sides: dict[str, Make] = {"file": lambda source, target: partial(file_to_file, loaded, pool, source, target)}
    sides["embed"] = lambda file, batch_size: partial(embed, loaded, texts(file), batch_size)
    answer(sides)
