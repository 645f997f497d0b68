"""A repository that loads, and what breaks it: each breakage with the words that its refusal must have."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.model.loading import load
from shared.errors import ModelRefused
from support.tiny import CPU, write_json

KINDS = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_Normalize": "Normalize"}
MODULES = [{"name": kind, "type": f"sentence_transformers.models.{kind}", "path": path} for path, kind in KINDS.items()]
DENSE = {"in_features": 64, "out_features": 32, "activation_function": "torch.nn.modules.activation.Tanh"}


def whole_repository(encoder: Path, folder: Path) -> Path:
    """A repository that loads: encoder, pooling, a dense layer, unit length."""
    shutil.copytree(encoder, folder)
    write_json(
        folder,
        modules=MODULES,
        **{"1_Pooling__config": {"pooling_mode": "cls", "embedding_dimension": 64}, "2_Dense__config": DENSE},
    )
    save_dense(folder, 32)
    return folder


def save_dense(folder: Path, outputs: int, inputs: int = 64) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))
    tensors = {"linear.weight": weight, "linear.bias": torch.zeros(outputs)}
    save_file(tensors, folder / "2_Dense" / "model.safetensors")


def refusal(folder: Path) -> str:
    """What the load says, on its one line."""
    with pytest.raises(ModelRefused) as raised:
        load(str(folder), CPU)
    said = str(raised.value)
    assert "\n" not in said
    return said


class Poison:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self._path, "executed")


def settings(name: str, **values: Any) -> Callable[[Path], object]:
    """Changes values of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / name
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | values))

    return change


def text(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def cut(name: str, size: int = 1000) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def modules(**changed: str) -> Callable[[Path], object]:
    """One module more, of that type and path."""
    return lambda folder: write_json(folder, modules=[*MODULES, {"name": "one more"} | changed])


def shards_elsewhere(folder: Path) -> None:
    """Weights in several files, by an index that names one outside."""
    (folder / "model.safetensors").unlink()
    text("model.safetensors.index.json", '{"weight_map": {"a": "../model.safetensors"}}')(folder)


def drop(key: str) -> Callable[[Path], object]:
    """Takes a tensor out of the dense layer."""

    def change(folder: Path) -> None:
        path = folder / "2_Dense" / "model.safetensors"
        save_file({name: tensor for name, tensor in load_file(path).items() if name != key}, path)

    return change


def add(key: str) -> Callable[[Path], object]:
    """Puts a tensor into the dense layer."""

    def change(folder: Path) -> None:
        path = folder / "2_Dense" / "model.safetensors"
        save_file(load_file(path) | {key: torch.ones(32, 64)}, path)

    return change


def reshape(folder: Path) -> None:
    """A weight of another width than config.json says."""
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.output.dense.weight"] = torch.ones(64, 100)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def lack(folder: Path) -> None:
    """A checkpoint without a weight of a layer."""
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def without_dtype(folder: Path) -> None:
    """The number format under the key of older files."""
    config = json.loads((folder / "config.json").read_text())
    config.pop("dtype", None)
    write_json(folder, config=config | {"torch_dtype": "auto"})


POOLING, LINEAR, LENGTHS = "1_Pooling/config.json", "2_Dense/config.json", "sentence_bert_config.json"
CHAT = {"message": {"method": "forward", "method_output_name": "last_hidden_state"}}
BROKEN: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "no config": (without("config.json"), ["config.json", "missing"]),
    "a config that is a list": (text("config.json", "[1]"), ["config.json", "JSON object", "list"]),
    "a config that is no JSON": (text("config.json", "{"), ["config.json", "cannot be read"]),
    "a pooling that is a list": (text(POOLING, "[]"), [POOLING, "JSON object"]),
    "a pooling that is missing": (without(POOLING), [POOLING, "is missing"]),
    "modules that are no JSON": (text("modules.json", "{"), ["modules.json cannot be read"]),
    "modules that are an object": (text("modules.json", '{"a": 1}'), ["modules.json", "list"]),
    "a weight of another shape": (reshape, ["encoder.layer.0.output.dense.weight", "[64, 100]", "[64, 128]"]),
    "a weight that is missing": (lack, ["the checkpoint lacks encoder.layer.1.output.dense.weight"]),
    "weights that are none": (text("model.safetensors", "not a tensor"), ["model.safetensors cannot be read"]),
    "truncated weights": (cut("model.safetensors"), ["model.safetensors", "cannot be read"]),
    "an unknown pooling": (settings(POOLING, pooling_mode="median"), [POOLING, "pooling_mode", "median"]),
    "an unknown pooling among others": (settings(POOLING, pooling_mode=["cls", "x"]), [POOLING, "pooling_mode x"]),
    "an unknown module": (modules(type="x.CLIPModel", path="4"), ["modules.json", "type x.CLIPModel"]),
    "a module without a path": (modules(type="x.Dense"), ["modules.json: path of a module None must be a text"]),
    "an unknown activation": (
        settings(LINEAR, activation_function="torch.nn.modules.activation.Nothing"),
        ["activation_function", "Nothing"],
    ),
    "an activation from elsewhere": (
        settings(LINEAR, activation_function="os.system"),
        [LINEAR, "activation_function os.system"],
    ),
    "an activation that wants arguments": (
        settings(LINEAR, activation_function="torch.nn.modules.activation.MultiheadAttention"),
        ["activation_function", "MultiheadAttention", "arguments"],
    ),
    "widths that are no numbers": (settings(LINEAR, in_features="many"), [LINEAR, "in_features"]),
    "a dense layer of another width": (lambda folder: save_dense(folder, 16), ["2_Dense", "[16, 64]", "[32, 64]"]),
    "a dense layer for another encoder": (
        lambda folder: save_dense(folder, 32, 48),
        ["2_Dense", "[32, 48]", "[32, 64]"],
    ),
    "a dense layer without weights": (without("2_Dense/model.safetensors"), ["2_Dense", "model.safetensors"]),
    "a dense layer without its bias": (drop("linear.bias"), ["2_Dense/model.safetensors", "linear.bias"]),
    "a dense layer with a residual that its config leaves out": (
        add("residual.weight"),
        ["2_Dense/model.safetensors holds residual.weight"],
    ),
    "a dense layer that is cut off": (
        cut("2_Dense/model.safetensors", 60),
        ["2_Dense/model.safetensors", "cannot be read"],
    ),
    "a chat template for an encoder": (settings(LENGTHS, modality_config=CHAT), [LENGTHS, "modality_config"]),
    "an unknown task": (settings(LENGTHS, transformer_task="retrieval"), [LENGTHS, "transformer_task retrieval"]),
    "a head of another task": (settings(LENGTHS, transformer_task="fill-mask"), ["modules.json"]),
    "a module that is its own code": (
        modules(type="custom_st.Transformer", path=""),
        ["modules.json", "custom_st.Transformer", "not run"],
    ),
    "a module from outside": (
        modules(type="sentence_transformers.models.Dense", path="../elsewhere"),
        ["modules.json", "../elsewhere", "leaves the repository"],
    ),
    "a module from anywhere": (
        modules(type="sentence_transformers.models.Dense", path="/elsewhere"),
        ["modules.json", "/elsewhere", "leaves the repository"],
    ),
    "shards from outside": (
        shards_elsewhere,
        ["model.safetensors.index.json", "leaves the repository"],
    ),
    "unknown arguments of the tokenizer": (
        settings(LENGTHS, tokenizer_args={"add_prefix_space": True}),
        [LENGTHS, "tokenizer_args", "add_prefix_space"],
    ),
    "unknown arguments of the model": (
        settings(LENGTHS, model_args={"lora": "x"}),
        [LENGTHS, "model_args", "lora"],
    ),
    "unknown arguments of a call": (
        settings(LENGTHS, processing_kwargs={"text": {"add_special_tokens": False}}),
        [LENGTHS, "processing_kwargs", "add_special_tokens"],
    ),
    "modalities that are a list": (
        settings("sentence_bert_config.json", modality_config=["x"]),
        ["model", "unexpected"],
    ),
    "positions that depend on the step": (
        settings("config.json", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        ["config.json", "rope_type dynamic"],
    ),
    "a number that is a text": (settings(LENGTHS, max_seq_length="128"), [LENGTHS, "max_seq_length '128'"]),
    "a number that is a fraction": (settings(LENGTHS, max_seq_length=12.0), [LENGTHS, "max_seq_length 12.0"]),
    "a number that is a truth": (settings(LENGTHS, max_seq_length=True), [LENGTHS, "max_seq_length True"]),
    "a number below nothing": (settings(LENGTHS, max_seq_length=-1), [LENGTHS, "max_seq_length -1"]),
    "the tokenizer's number as a text": (
        settings("tokenizer_config.json", model_max_length="128"),
        ["tokenizer_config.json", "model_max_length '128'"],
    ),
    "a call's number as a text": (
        settings(LENGTHS, processing_kwargs={"text": {"max_length": "9"}}),
        [LENGTHS, "max_length '9'"],
    ),
    "a width that is a text": (settings(LINEAR, in_features="64"), [LINEAR, "in_features '64'"]),
    "a width that is a fraction": (settings(LINEAR, out_features=32.0), [LINEAR, "out_features 32.0"]),
    "a pooling's width as a text": (settings(POOLING, embedding_dimension="64"), [POOLING, "embedding_dimension '64'"]),
    "a pooling without a width": (text(POOLING, '{"pooling_mode": "cls"}'), [POOLING, "embedding_dimension None"]),
    "a cut that is a text": (
        settings("config_sentence_transformers.json", truncate_dim="16"),
        ["config_sentence_transformers.json", "truncate_dim '16'"],
    ),
    "heads that are a fraction": (
        settings("config.json", num_attention_heads=2.0),
        ["config.json cannot be used", "num_attention_heads", "2.0"],
    ),
    "heads that are a text": (
        settings("config.json", num_attention_heads="4"),
        ["config.json cannot be used", "num_attention_heads", "expected int, got str"],
    ),
    "heads that do not divide the width": (
        settings("config.json", num_attention_heads=7),
        ["config.json cannot be used", "not a multiple of the number of attention heads (7)"],
    ),
    "heads that attend to what is not there": (
        settings("config.json", is_decoder=False, add_cross_attention=True),
        ["config.json cannot be used", "should be used as a decoder model"],
    ),
    "an activation with weights of its own": (
        settings(LINEAR, activation_function="torch.nn.PReLU"),
        [f"{LINEAR}: activation_function torch.nn.PReLU has weights of its own"],
    ),
    "an activation with arguments": (
        settings(LINEAR, activation_function="torch.nn.Linear"),
        [f"{LINEAR}: activation_function torch.nn.Linear wants arguments"],
    ),
    "a width of other rows": (
        settings(LINEAR, in_features=128),
        [f"{LINEAR}: in_features is 128, and rows of 64 numbers come in"],
    ),
    "a number of modes that is none": (text(POOLING, '{"pooling_mode": [], "embedding_dimension": 64}'), ["mode []"]),
    "a number of modes that is null": (
        text(POOLING, '{"pooling_mode": null, "embedding_dimension": 64, "pooling_mode_cls_token": true}'),
        [POOLING, "pooling_mode None"],
    ),
    "an activation that nobody knows": (
        settings("config.json", hidden_act="nothing"),
        ["config.json cannot be used: there is no 'nothing'"],
    ),
    "dimensions that are a text": (
        settings("config.json", matryoshka_dimensions="64"),
        ["config.json: matryoshka_dimensions '64' must be a list"],
    ),
    "a dimension that is a text": (
        settings("config.json", matryoshka_dimensions=[32, "64"]),
        ["config.json: matryoshka_dimensions '64' must be a whole number"],
    ),
    "a number format that is none": (settings("config.json", dtype="auto"), ["config.json cannot be used", "'auto'"]),
    "an older key of the same": (without_dtype, ["config.json cannot be used", "'auto'"]),
    "no model type": (settings("config.json", model_type="nothing"), ["config.json cannot be used", "nothing"]),
    "a key that no Transformer takes": (settings(LENGTHS, max_length=9), [LENGTHS, "max_length"]),
    "a tokenizer elsewhere": (settings(LENGTHS, tokenizer_name_or_path="/x"), [LENGTHS, "tokenizer_name_or_path"]),
    "a key that no Pooling takes": (settings(POOLING, pooling_mode_median=True), [POOLING, "pooling_mode_median"]),
    "a prompt that is a number": (
        settings("config_sentence_transformers.json", prompts={"q": 5}),
        ["config_sentence_transformers.json", "prompt 'q' 5 must be a text"],
    ),
    "an activation that is a function": (
        settings(LINEAR, activation_function="torch.nn.functional.tanh"),
        [LINEAR, "torch.nn.functional.tanh is not the name of a class, such as torch.nn.Tanh"],
    ),
    "prompts that are a list": (
        settings("config_sentence_transformers.json", prompts=["query: "]),
        ["config_sentence_transformers.json: prompts ['query: '] must be an object"],
    ),
    "an unknown default prompt": (
        settings("config_sentence_transformers.json", default_prompt_name="q"),
        ["config_sentence_transformers.json", "default_prompt_name 'q'"],
    ),
}
