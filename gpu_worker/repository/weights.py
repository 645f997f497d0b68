"""Loads a transformers folder into the class that its recipe names, with every weight that it needs.

Checkpoints whose weights were quantised before they were published are refused, whatever the format, by the names of
formats and the types of stored tensors.

Weights of a checkpoint that the class does not take are judged by where they lie, as transformers names them after its
own renaming: those inside of the encoder would change what it computes, all others are left out.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gpu_worker.device.placement import Placement
from gpu_worker.repository.files import check_fetched, first_line, one_line, read_object, weight_files
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
"""Classes of the encoders of encoder-decoders: they make vectors without the decoder, as in sentence-transformers."""
TEXT_SIDES = {
    "embedding_gemma2": "embedding_gemma2_text",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_vl": "qwen3",
}
"""The `model_type` of the class that computes texts alone, by that of a model of texts, images and sounds. A text has
one position for each token, with which Qwen3-VL's rotary angles (three positions a token) are Qwen3's."""
LANGUAGE_MODEL = r"^(vlm\.)?(model\.)?language_model\.(model\.)?(?!lm_head)"
LANGUAGE_MODEL_HEAD = r"^language_model\.lm_head\."
"""Patterns of where the tensors of a text side lie in the files of the whole."""
OWN_ATTENTION = ("sdpa", "eager")
"""Implementations of attention that transformers has without another package. It uses the first where the class has it
and the config names none."""
UNUSED = ("pooler.",)  # weights of an encoder that vectors do not use; a checkpoint may lack them
CONSTANTS = re.compile(
    r"(^|\.)((position|token_type)_ids|version|\w*inv_freq|(cos|sin)_cached|masked_bias|causal_mask|(attn|attention)\.bias)$"
)
"""Pattern of what old checkpoints hold beside weights: positions, tables of angles with the version of their form,
and causal masks, which GPT-2 and others called `attn.bias`."""
EMBEDDING_OR_NORM = re.compile(r"(?!.*(vision|visual|image|audio)).*(embed|norm)", re.IGNORECASE)
"""Pattern of parts directly in an encoder that change its hidden states, even where its class has no part of the name;
others are poolers and other towers."""
NAMED = 3
"""How many weights a refusal or a notice names."""
QUANTISATION_KEYS = ("quantization_config", "compression_config", "quantization")
"""Keys of config.json: transformers', that of older compressed-tensors, MLX's."""
QUANTISED = {torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2}
"""Types of quantised weights."""
STORED = {"I8", "U8", "I32", "F8_E4M3", "F8_E5M2", "F4"}
"""Types of quantised weights in a safetensors file."""
WEIGHT_NAMES = ("weight", "weight_packed", "qweight")
HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


def config_of(folder: Path, recipe: Recipe, trust_remote_code: bool) -> PretrainedConfig:
    """Loads config.json through transformers, with the overrides of other files. Raises ModelRefused, naming the file.

    Tokenizers read config.json too; it is loaded here first, so that the refusal names it and not the tokenizer.
    """
    file = folder / "config.json"
    _check_not_quantised(file)
    try:
        if "model_type" in recipe.config:  # a class of transformers computes what the repository's own code does
            described = read_object(file)
            described.pop("auto_map", None)
            config = CONFIG_MAPPING[recipe.config["model_type"]].from_dict(described)
        else:
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
        config = getattr(config, recipe.part) if recipe.part else config
        if is_text_side(folder, recipe):
            config = _text_side_of(config)
        for key, value in recipe.config.items():
            setattr(config, key, value)  # a keyword would be refused where config.json does not have the key
    except Exception as error:  # each class checks its keys in its own way
        raise ModelRefused(f"{file} cannot be used: {one_line(error)}") from error
    assert isinstance(config, PretrainedConfig)
    return config


def is_text_side(folder: Path, recipe: Recipe) -> bool:
    """Whether the model of a folder reads images or sounds too, and its class for texts is served alone."""
    described = read_object(folder / "config.json")
    kind = TEXT_SIDES.get(described.get(recipe.part, described).get("model_type", ""))
    is_causal = recipe.weights_of == "causal-lm" and kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return kind is not None and (recipe.weights_of == "encoder" or is_causal)


def _text_side_of(config: PretrainedConfig) -> PretrainedConfig:
    """The config of the class that computes texts alone."""
    kind, texts = TEXT_SIDES[config.model_type], config.get_text_config()
    if hasattr(config, "tie_word_embeddings"):  # a head is that of the whole
        texts.tie_word_embeddings = config.tie_word_embeddings
    if texts.model_type == kind:
        return texts
    described = texts.to_dict() | {"model_type": kind}
    rotary = described["rope_parameters"].items()
    described["rope_parameters"] = {key: value for key, value in rotary if not key.startswith("mrope")}
    return CONFIG_MAPPING[kind].from_dict(described)


def load(folder: Path, recipe: Recipe, placement: Placement, trust_remote_code: bool) -> tuple[Any, str]:
    """Loads the model in evaluation mode onto its device; and a notice of weights that are left out, or "".

    Raises ModelRefused, naming file or weight. Pickles are read as plain tensors only, and code beside the weights runs
    only with `trust_remote_code`.
    """
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    config = config_of(folder, recipe, trust_remote_code)
    _check_files(folder)
    try:
        texts = config.get_text_config()
        texts.use_cache = False  # nothing is generated, and some classes would ask for a cache
        texts.return_dict = True  # outputs are read by their names, whatever the file says
        if config._attn_implementation not in (None, *OWN_ATTENTION):
            config._attn_implementation = None  # it names a kernel of another package, which computes the same
        inner = "" if recipe.weights_of == "encoder" else "model."  # where a class with a head has its encoder
        places = {LANGUAGE_MODEL: inner, LANGUAGE_MODEL_HEAD: "lm_head."}
        options: dict[str, Any] = {
            "config": config,
            "dtype": placement.dtype,
            "ignore_mismatched_sizes": True,  # refused below, by name
            "output_loading_info": True,
            "key_mapping": places if is_text_side(folder, recipe) else None,
        }
        model, report = class_of(config, recipe.weights_of).from_pretrained(
            folder, weights_only=True, **options, **where
        )
    except Exception as error:  # transformers and safetensors raise many kinds; all mean that it cannot be loaded
        _check_config(folder, config, recipe.weights_of)
        pickled = folder / "pytorch_model.bin"
        file = pickled if pickled.is_file() and not any(folder.glob("*.safetensors")) else folder
        raise ModelRefused(f"{file}: the weights cannot be loaded: {first_line(error)}") from error
    mismatched = sorted(report["mismatched_keys"], key=str)
    if mismatched:
        name, shape, config_shape = mismatched[0]
        raise ModelRefused(f"{folder}: {name} has the shape {list(shape)}, the config wants {list(config_shape)}")
    unused = UNUSED if recipe.weights_of == "encoder" else ()
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(unused))
    if missing:
        raise ModelRefused(f"{folder}: the checkpoint lacks {missing[0]} and {len(missing) - 1} other weights")
    left_out = _left_out(folder, recipe, model, report["unexpected_keys"])
    model = model.to(placement.device).eval()
    assert isinstance(model, nn.Module)
    return model, f"weights that nothing here uses are left out: {_listed(left_out)}" if left_out else ""


def _left_out(folder: Path, recipe: Recipe, model: Any, unexpected: Iterable[str]) -> list[str]:
    """Names of weights that neither the class nor a head takes, sorted. Raises ModelRefused for those of the encoder.

    Where a checkpoint is that of a bare encoder, all names are those of its parts; else they begin with its prefix.
    """
    base, prefix = model.base_model, f"{model.base_model_prefix}."
    written_by = str((model.config.architectures or [""])[0])
    bare = written_by.endswith("Model") and not written_by.endswith(("HeadModel", "HeadsModel"))
    constants = {name for name, _ in base.named_buffers()}
    modules = dict(base.named_modules())
    inside: list[str] = []
    left_out: list[str] = []
    for key in sorted(set(unexpected) - recipe.head_keys()):
        name = key.removeprefix(prefix)
        if CONSTANTS.search(name) or name in constants:
            continue
        within = _is_inside(modules, name) or ((bare or name != key) and EMBEDDING_OR_NORM.match(name.split(".")[0]))
        (inside if within else left_out).append(key)
    if inside:
        raise ModelRefused(
            f"{folder}: {type(base).__name__} of transformers takes no {_listed(inside)}, which lie inside of the "
            "encoder: without them it would compute something else"
        )
    return left_out


def _is_inside(modules: dict[str, nn.Module], name: str) -> bool:
    """Whether a weight lies in one of an encoder's parts; layers beyond those that the config counts are not its."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        if isinstance(modules.get(".".join(parts[:end])), nn.ModuleList):
            return ".".join(parts[: end + 1]) in modules
    return parts[0] in modules and not name.startswith(UNUSED)


def _listed(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _check_config(folder: Path, config: PretrainedConfig, weights_of: WeightsOf) -> None:
    """Raises ModelRefused where no model can be made from a config, whatever the weights.

    Called when weights could not be loaded, to find the cause. It uses the meta device, as it needs no numbers.
    """
    try:
        with torch.device("meta"):
            from_config(config, weights_of, torch.float32)
    except Exception as error:  # any class of transformers may fail
        raise ModelRefused(f"{folder / 'config.json'} cannot be used: {one_line(error)}") from error


def class_of(config: PretrainedConfig, weights_of: WeightsOf) -> Any:
    """Finds the class that holds the weights: one of transformers' Auto classes, or an encoder without its decoder."""
    if weights_of == "encoder" and config.model_type in ENCODERS:
        if config.is_encoder_decoder and config.model_type == "t5gemma":
            config.is_encoder_decoder = False  # its encoder's class requires it
        return getattr(transformers, ENCODERS[config.model_type])
    return CLASSES[weights_of]


def from_config(config: PretrainedConfig, weights_of: WeightsOf, dtype: torch.dtype) -> Any:
    """Makes a model of a config's class with random weights, in training mode."""
    chosen = class_of(config, weights_of)
    if not hasattr(chosen, "from_config"):  # a plain class, not one of the Auto classes
        return chosen._from_config(config, dtype=dtype)
    return chosen.from_config(config, dtype=dtype)


def _check_not_quantised(file: Path) -> None:
    """Raises ModelRefused where config.json, or a part of it, says that weights are quantised."""
    config = read_object(file)
    for section in (config, *(part for part in config.values() if isinstance(part, dict))):
        for key in (key for key in QUANTISATION_KEYS if section.get(key) is not None):
            method = section[key].get("quant_method") if isinstance(section[key], dict) else None
            name = " ".join(str(method or "no quant_method").split())
            raise _quantised(file, f"{file}: {key} ({name})")


def _check_files(folder: Path) -> None:
    """Opens the files of the weights. Raises ModelRefused, which names a missing or broken one, and for a weight in a
    quantised type: transformers would take its numbers as they are."""
    for file in weight_files(folder):
        check_fetched(file)
        if file.suffix != ".safetensors":
            continue
        try:
            with safe_open(file, framework="pt") as stored:
                names = [name for name in stored.keys() if name.endswith(WEIGHT_NAMES)]  # noqa: SIM118
                kinds = {name: stored.get_slice(name).get_dtype() for name in names}
        except (OSError, SafetensorError) as error:
            raise ModelRefused(f"{file} cannot be read: {first_line(error)}") from None
        for name in (name for name, kind in kinds.items() if kind in STORED):
            raise _quantised(folder / "config.json", f"{file}: {name} is stored as {kinds[name]}")


def _quantised(file: Path, what: str) -> ModelRefused:
    """Makes the refusal of quantised weights, which names the hub id that config.json, `file`, has for their model, if
    any."""
    named = read_object(file).get("_name_or_path")
    origin = f" (_name_or_path: {named})" if isinstance(named, str) and HUB_ID.fullmatch(named) else ""
    return ModelRefused(
        f"{what}: quantised weights are not served; serve the checkpoint that they were made from{origin}; --dtype "
        "int8 rounds its layers at load"
    )
