"""Times vLLM's way to cut a step's rows by text, by the interpreter of its venv: see `splitting.py`.

It reads a line of JSON, and imports nothing of the benchmarks, which that interpreter does not have.
"""

import json
import sys
import time


def main() -> int:
    """Splits the rows again and again for some seconds, and prints the seconds of each time."""
    import numpy as np
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config  # type: ignore[import-not-found, unused-ignore]
    from vllm.model_executor.layers.pooler.tokwise.methods import (  # type: ignore[import-not-found, unused-ignore]
        AllPool,
    )
    from vllm.pooling_params import PoolingParams  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates  # type: ignore[import-not-found, unused-ignore]

    wanted = json.loads(sys.stdin.readline())
    lengths, chosen = wanted["lengths"], slice(wanted["first"], wanted["first"] + wanted["count"])
    with set_current_vllm_config(VllmConfig()):
        pool = AllPool()
    pool.enable_chunked_prefill = pool.clone_finished = False
    tasks = ["classify"] * len(lengths)
    tasks[chosen] = ["token_classify"] * wanted["count"]
    counts = np.array(lengths, dtype=np.int32)
    metadata = PoolingMetadata(
        prompt_lens=torch.from_numpy(counts),
        prompt_token_ids=None,
        prompt_token_ids_cpu=None,
        pooling_params=[PoolingParams(task=task) for task in tasks],
        pooling_states=[PoolingStates() for _ in tasks],
    )
    metadata.build_pooling_cursor(counts, torch.from_numpy(counts), torch.device("cpu"))
    start, size = sum(lengths[: chosen.start]), sum(lengths[chosen])
    hidden = torch.zeros(sum(lengths), wanted["width"], dtype=torch.bfloat16)

    def split() -> None:
        rows = pool(hidden[start : start + size], metadata[chosen])
        assert len(rows) == wanted["count"]

    taken = []
    stop = time.perf_counter() + wanted["seconds"]
    while (begun := time.perf_counter()) < stop:
        split()
        taken.append(time.perf_counter() - begun)
    print(json.dumps({"seconds": taken}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
