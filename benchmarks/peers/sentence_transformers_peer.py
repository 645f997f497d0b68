"""sentence-transformers in a Python of its own.

Arguments: a folder, a number format, and how many processes its pool has, if any.
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.peers.answering import NO_BFLOAT16, Ids, Make, Refused, Rows, answer, children_seconds, texts
from benchmarks.peers.answering import embed as in_batches
from benchmarks.workloads import MAX_TOKENS


def embed(model: SentenceTransformer, all_texts: list[Ids], batch_size: int) -> Rows:
    """Does what `encode` does after tokenising: sorts by length, longest first, pads each batch, runs the modules.

    Gives normalised rows [S, D] in the order of the texts.
    """

    transformer: Any = model[0]
    typed = transformer.auto_model.config.model_type == "bert"

    def infer(ids: Any, mask: Any) -> Rows:
        types = {"token_type_ids": np.zeros_like(ids)} if typed else {}
        inputs = {"input_ids": ids, "attention_mask": mask} | types
        batch = {name: torch.from_numpy(array) for name, array in inputs.items()}
        rows: Rows = model(batch)["sentence_embedding"].float().numpy()
        return rows

    with torch.inference_mode():
        return in_batches(infer, all_texts, batch_size)


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


def load(folder: str, dtype: str, processes: int) -> dict[str, Make]:
    """Loads the model, and a pool of processes where there is to be one. Raises Refused for a slow format."""
    if dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise Refused(NO_BFLOAT16)
    loaded = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})
    loaded.max_seq_length = MAX_TOKENS  # as the others have it
    pool = started(loaded, processes) if processes else None
    return {
        "file": lambda source, target: partial(file_to_file, loaded, pool, source, target),
        "embed": lambda file, batch_size, streams: partial(embed, loaded, texts(file), batch_size),  # one at a time
    }


if __name__ == "__main__":
    answer(partial(load, sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0))
