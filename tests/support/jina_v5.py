"""Tiny random models in the layout of jinaai/jina-embeddings-v5-text-small (Qwen3) and -nano (EuroBERT).

Their files are those of the hub: config.json with a model type of its own, code that must not run, and an adapter of
each task, of all seven projections of a layer, in `adapters/TASK`.
"""

import json
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModel

from support.adapted import adapted
from support.tiny import reader, write_encoder, write_json

TASKS = ("retrieval", "text-matching", "clustering", "classification")
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROMPTS = {"query": "w21 w22 ", "document": "w23 w24 "}
"""Stand for "Query: " and "Document: ", which the tiny tokenizer does not know."""
SMALL, NANO = "tiny-qwen3", "tiny-eurobert"


def write_v5(folder: Path, shape: str = SMALL, **options: Any) -> Path:
    """Writes such a repository into `folder`, and its base as transformers has it into the folder `base` beside it;
    `options` are those of the adapters."""
    base = folder.with_name(f"{folder.name}-base")
    write_encoder(base, shape)
    write_encoder(folder, shape)
    for seed, task in enumerate(TASKS):
        chosen = {"target_modules": PROJECTIONS, "task_type": "FEATURE_EXTRACTION"} | options
        peft = adapted(AutoModel.from_pretrained(base), seed, **chosen)
        peft.save_pretrained(str(folder / "adapters" / task))
        (folder / "adapters" / task / "README.md").unlink()
        change_adapter(folder, task, base_model_name_or_path=f"jinaai/{folder.name}")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["JinaEmbeddingsV5Model"], "model_type": "jina_embeddings_v5", "task_names": [*TASKS]}
    code = "modeling_jina_embeddings_v5"
    config["auto_map"] = {"AutoConfig": f"{code}.JinaEmbeddingsV5Config", "AutoModel": f"{code}.JinaEmbeddingsV5Model"}
    config |= {"is_decoder": False} if shape == NANO else {}
    module = {"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer"}
    described = {"prompts": PROMPTS, "default_prompt_name": "document", "similarity_fn_name": "cosine"}
    for name in (code, "custom_st"):
        (folder / f"{name}.py").write_text('raise AssertionError("the code of a repository was run")\n')
    return write_json(
        folder,
        config=config,
        modules=[module | {"kwargs": ["task", "truncate_dim"]}],
        config_sentence_transformers=described,
    )


def change_adapter(folder: Path, task: str, **values: Any) -> None:
    """Changes values of a task's adapter_config.json."""
    file = folder / "adapters" / task / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def change_config(folder: Path, **values: Any) -> None:
    """Changes values of config.json; None takes them away."""
    file = folder / "config.json"
    changed = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))


def own_rows(folder: Path, task: str, texts: list[str], prompt: str = "document") -> Tensor:
    """Rows [S, H] of texts as the repository's code makes them, by peft, one text at a time."""
    base = folder.with_name(f"{folder.name}-base")
    assert AutoConfig.from_pretrained(base).model_type in ("qwen3", "eurobert")
    model = PeftModel.from_pretrained(AutoModel.from_pretrained(base), str(folder / "adapters" / task)).eval()
    with torch.inference_mode():
        ids = [reader()(PROMPTS[prompt] + text, return_tensors="pt") for text in texts]
        states = [
            model(input_ids=each["input_ids"], attention_mask=each["attention_mask"]).last_hidden_state for each in ids
        ]
    return functional.normalize(torch.stack([rows[0, -1] for rows in states]), dim=-1)
