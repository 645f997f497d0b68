"""A transformers folder on disk -> the class that its recipe asks for, with every weight that it needs."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
)

from gpu_worker.device.placement import Placement
from gpu_worker.repository.files import check_weight_files, first_line, one_line
from gpu_worker.repository.recipe import Recipe, WeightsOf
from shared.errors import ModelRefused

CLASSES: dict[WeightsOf, Any] = {
    "encoder": AutoModel,
    "masked-lm": AutoModelForMaskedLM,
    "causal-lm": AutoModelForCausalLM,
    "sequence-classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
}
ENCODERS = {
    "t5": "T5EncoderModel",
    "mt5": "MT5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "longt5": "LongT5EncoderModel",
    "switch_transformers": "SwitchTransformersEncoderModel",
    "t5gemma": "T5GemmaEncoderModel",
}
"""Encoder-decoders of which the encoder alone makes vectors, as sentence-transformers has it, and its class."""
OWN_ATTENTION = ("sdpa", "eager")
"""Implementations of attention that transformers has without another package; it takes the first where a class has it
and its config asks for none."""
UNUSED = ("pooler.",)  # weights of an encoder that vectors do not use; a checkpoint may lack them


def config_of(folder: Path, recipe: Recipe, trust_remote_code: bool) -> PretrainedConfig:
    """What transformers makes of config.json, with what other files put over it. Raises ModelRefused, naming the file.

    Tokenizers read it too, so whoever opens it first is blamed for what is wrong in it.
    """
    file = folder / "config.json"
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
        for key, value in recipe.config.items():
            setattr(config, key, value)  # a keyword would be refused where config.json does not have the key
    except Exception as error:  # each class checks its keys in its own way
        raise ModelRefused(f"{file} cannot be used: {one_line(error)}") from error
    method = getattr(config, "quantization_config", None)
    if method is not None:
        named = method.get("quant_method") if isinstance(method, dict) else type(method).__name__
        raise ModelRefused(
            f"{file}: quantization_config ({named}): weights that a package of their own unpacks are not served; "
            "--linear fp8 rounds whole ones"
        )
    assert isinstance(config, PretrainedConfig)
    return config


def load(folder: Path, recipe: Recipe, placement: Placement, trust_remote_code: bool) -> Any:
    """The model in evaluation mode on its device. Raises ModelRefused, naming file or weight.

    Pickles are read as plain tensors only, and code beside the weights is not run unless `trust_remote_code`.
    """
    check_weight_files(folder)
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    config = config_of(folder, recipe, trust_remote_code)
    try:
        texts = config.get_text_config()
        texts.use_cache = False  # nothing is generated, and some classes then want a cache
        texts.return_dict = True  # outputs are read by their names, whatever the file says
        if config._attn_implementation not in (None, *OWN_ATTENTION):
            config._attn_implementation = None  # a kernel of a package, which computes the same
        model, report = class_of(config, recipe.weights_of).from_pretrained(
            folder,
            config=config,
            dtype=placement.dtype,
            weights_only=True,
            ignore_mismatched_sizes=True,  # told below, by name
            output_loading_info=True,
            **where,
        )
    except Exception as error:  # transformers and safetensors raise many kinds; all mean that it cannot be loaded
        _check_config(folder, config, recipe.weights_of)
        pickled = folder / "pytorch_model.bin"
        file = pickled if pickled.is_file() and not any(folder.glob("*.safetensors")) else folder
        raise ModelRefused(f"{file}: the weights cannot be loaded: {first_line(error)}") from error
    mismatched = sorted(report["mismatched_keys"], key=str)
    if mismatched:
        name, found, wanted = mismatched[0]
        raise ModelRefused(f"{folder}: {name} has the shape {list(found)}, the config wants {list(wanted)}")
    unused = UNUSED if recipe.weights_of == "encoder" else ()
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(unused))
    if missing:
        raise ModelRefused(f"{folder}: the checkpoint lacks {missing[0]} and {len(missing) - 1} other weights")
    model = model.to(placement.device).eval()
    assert isinstance(model, nn.Module)
    return model


def _check_config(folder: Path, config: PretrainedConfig, weights_of: WeightsOf) -> None:
    """Raises ModelRefused where no model can be made of a config, whatever weights lie beside it.

    For weights that could not be loaded: on no device, since numbers of a fresh model mean nothing.
    """
    try:
        with torch.device("meta"):
            from_config(config, weights_of, torch.float32)
    except Exception as error:  # of any class of transformers
        raise ModelRefused(f"{folder / 'config.json'} cannot be used: {one_line(error)}") from error


def class_of(config: PretrainedConfig, weights_of: WeightsOf) -> Any:
    """The class that holds the weights: one of Auto's, or an encoder without its decoder."""
    if weights_of == "encoder" and config.model_type in ENCODERS:
        if config.is_encoder_decoder and config.model_type == "t5gemma":
            config.is_encoder_decoder = False  # its encoder's class wants to be told
        return getattr(transformers, ENCODERS[config.model_type])
    return CLASSES[weights_of]


def from_config(config: PretrainedConfig, weights_of: WeightsOf, dtype: torch.dtype) -> Any:
    """The same with random weights, in training mode."""
    chosen = class_of(config, weights_of)
    if not hasattr(chosen, "from_config"):  # a class of its own, not one of Auto's
        return chosen._from_config(config, dtype=dtype)
    return chosen.from_config(config, dtype=dtype)
