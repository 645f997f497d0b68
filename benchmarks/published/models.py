"""Files of a shape with random weights, in the form that both servers read, written once and used again.

The folder is that of a sentence-transformers model: config, weights, tokenizer, `modules.json` and a pooling; or that
of a Stanford ColBERT, with a projection; or GritLM's, which has neither. MiniLM has its real weights in a package, and
nothing is written for it.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.machine import ROOT
from benchmarks.ours import Placement
from benchmarks.published.rows import Row
from benchmarks.workloads import MINILM, RANDOM, minilm_folder
from harness.random_models import synthetic, writing
from harness.random_models.shapes import Heads

MODELS = ROOT / "build" / "published"
COLBERT, PROJECTION = "HF_ColBERT", "linear.weight"
"""The class that config.json of a Stanford ColBERT names, and the tensor of its projection."""


def folder_of(row: Row) -> Path:
    """Gives the folder of a row's model. Writes its files where they are not there yet."""
    if row.model == MINILM:
        return minilm_folder()
    name = row.served_name
    kind = "ColBERT" if row.projected else "embedding"
    folder = MODELS / f"{name}-{kind}-{row.layers or 'all'}-layers-{row.dtype}-{row.max_tokens}" / name
    if not folder.is_dir():
        partial = folder.with_name(f"{name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        options = {"max_tokens": row.max_tokens, "layers": row.layers, "projected": row.projected}
        write(row.model, partial, dtype=row.dtype, **options)
        partial.rename(folder)
    return folder


def write(model: str, folder: Path, *, dtype: str, max_tokens: int, layers: int = 0, projected: int = 0) -> None:
    """Writes all files of a random model.

    `layers`: as many, whatever its shape says; 0 for those of its shape. `projected`: a ColBERT model instead, whose
    token rows have as many numbers.
    """
    config, heads = synthetic.shape_of(model.removeprefix(RANDOM))
    if layers:
        synthetic.with_layers(config, layers)
    if "roberta" in config.model_type:
        config.position_embedding_type = "absolute"  # published files say so, and vLLM reads it
    placement = Placement(device=torch.device("cpu"), dtype=getattr(torch, dtype))
    writing.write(folder, config, Heads() if projected else heads, placement, max_tokens)
    if projected:
        _project(folder, config.hidden_size, projected)


def _project(folder: Path, width: int, projected: int) -> None:
    """Names the tensors of a BERT encoder as Stanford ColBERT does, and adds its projection, with seeded numbers."""
    file, config = folder / "model.safetensors", folder / "config.json"
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(file).items()}
    projection = torch.randn(projected, width, generator=torch.Generator().manual_seed(projected)) / width**0.5
    tensors[PROJECTION] = projection.to(next(iter(tensors.values())).dtype)
    save_file(tensors, file, metadata={"format": "pt"})
    # without the width: vLLM 0.32 does not start where it is told
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": [COLBERT]}, indent=1) + "\n")
