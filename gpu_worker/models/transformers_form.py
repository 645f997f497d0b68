"""What config.json and its neighbours say of a transformers model. Reads JSON only.

A plain repository is told by `architectures`: Stanford ColBERT, GritLM, classifiers, masked and causal language models;
anything else is an encoder with mean pooling, as sentence-transformers reads it.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from gpu_worker.models.files import read_object
from gpu_worker.models.recipe import (
    MARKERS_LATER,
    ClassifierRecipe,
    DenseRecipe,
    Layer,
    ModelRefused,
    MultiVectorRecipe,
    Recipe,
    SparseRecipe,
)
from shared.vectors import Activation

PROCESS_REWARDS = "Qwen2ForProcessRewardModel"
"""Rewards of steps, at the tokens that end them (Qwen2.5-Math-PRM, arXiv:2501.07301)."""
HARMLESS = {"max_length", "padding", "padding_side", "pad_to_multiple_of", "return_tensors", "truncation"}
"""Arguments of a tokenizer that matter to padded batches only, and the limit."""
GRITLM_MARK = "<|embed|>\n"
"""Ends the instruction of a GritLM prompt (arXiv:2402.09906)."""
ACTIVATIONS = {
    "Identity": Activation.IDENTITY,
    "Sigmoid": Activation.SIGMOID,
    "Softmax": Activation.SOFTMAX,
    "Tanh": Activation.TANH,
}


def read(path: Path, name: str) -> Recipe:
    """The recipe of a repository without modules.json, known by `name`. Raises ModelRefused."""
    config = read_object(path / "config.json")
    limits = text_limits(path)
    architecture = str((config.get("architectures") or [""])[0])
    dense = DenseRecipe(allowed_dimensions=matryoshka(config))
    if architecture == "HF_ColBERT":
        linear = Layer(kind="dense", weights="model", keys={"weight": "linear.weight"})
        return Recipe(multi_vector=MultiVectorRecipe(layers=(linear,)), notice=MARKERS_LATER, **limits)
    if "gritlm" in str(config.get("auto_map", "")).lower():
        # Its own code is Mistral without the causal mask, which transformers' Mistral does with this setting.
        return Recipe(
            config={"is_causal": False},
            instruction_mark=GRITLM_MARK,
            dense=replace(dense, normalize=True),
            multi_vector=MultiVectorRecipe(),
            **limits,
        )
    if architecture == PROCESS_REWARDS:
        # Two layers over every token; its own code adds them to Qwen2, which transformers has.
        layers = tuple(
            Layer(kind="dense", activation=f"torch.nn.{activation}", weights="model", keys=_keys(f"score.{place}"))
            for place, activation in ((0, "ReLU"), (2, "Identity"))
        )
        rewards = replace(classifier(path, config, "tokens"), layers=layers)
        return Recipe(classifier=rewards, **limits)
    if architecture.endswith("ForSequenceClassification"):
        return Recipe(weights_of="sequence-classification", classifier=classifier(path, config, "sequence"), **limits)
    if architecture.endswith("ForTokenClassification"):
        return Recipe(weights_of="token-classification", classifier=classifier(path, config, "tokens"), **limits)
    if architecture.endswith("ForCausalLM") and re.search("rerank", name, re.IGNORECASE):
        yes_no = ClassifierRecipe(kind="yes-no", activation=Activation.SIGMOID, labels=("yes",), builtin_template=True)
        return Recipe(weights_of="causal-lm", classifier=yes_no, **limits)
    if architecture.endswith("ForMaskedLM"):
        # As SentenceTransformer and as SparseEncoder read it: one pass gives both.
        splade = SparseRecipe(kind="splade")
        return Recipe(weights_of="masked-lm", dense=dense, sparse=splade, multi_vector=MultiVectorRecipe(), **limits)
    return Recipe(dense=dense, multi_vector=MultiVectorRecipe(), **limits)


def _keys(name: str) -> dict[str, str]:
    """Names of a linear layer's tensors by role."""
    return {role: f"{name}.{role}" for role in ("weight", "bias")}


def matryoshka(config: dict[str, Any]) -> tuple[int, ...]:
    """Dimensions that the model was trained to be cut to, where config.json tells."""
    return tuple(sorted(config.get("matryoshka_dimensions") or ()))


def text_limits(folder: Path) -> dict[str, Any]:
    """How long a text may be, and whether it is lowered first."""
    settings = transformer_settings(folder)
    limit = settings.get("max_seq_length") or _processing(folder, settings).get("max_length")
    if limit is None:
        limit = read_object(folder / "tokenizer_config.json", missing={}).get("model_max_length")
    sensible = isinstance(limit, int | float) and 0 < limit < 10_000_000  # tokenizers write 1e30 for "none"
    return {
        "max_tokens": int(limit or 0) if sensible else None,
        "lowercase": bool(settings.get("do_lower_case")),
    }


def _processing(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """How sentence-transformers 6 calls the tokenizer. Raises ModelRefused for what would change token ids."""
    kinds = settings.get("processing_kwargs") or {}
    found = {key: value for kind in ("common", "text") for key, value in (kinds.get(kind) or {}).items()}
    unknown = sorted(set(found) - HARMLESS)
    if unknown:
        raise ModelRefused(f"{folder / 'sentence_bert_config.json'}: processing_kwargs {unknown[0]} is not supported")
    return found


def transformer_settings(folder: Path) -> dict[str, Any]:
    """What sentence-transformers wrote beside a transformers model: sentence_bert_config.json and its kin."""
    files = sorted(folder.glob("sentence_*_config.json"))
    return read_object(files[-1]) if files else {}


def classifier(path: Path, config: dict[str, Any], kind: Literal["sequence", "tokens"]) -> ClassifierRecipe:
    """Labels and activation as config.json says: sentence-transformers' own key, else by the problem type."""
    labels = config.get("id2label") or {str(index): f"LABEL_{index}" for index in range(config.get("num_labels", 2))}
    names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    named = (config.get("sentence_transformers") or {}).get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function")
    problem = config.get("problem_type")
    if named:
        activation = activation_of(path / "config.json", str(named))
    elif problem == "regression":
        activation = Activation.IDENTITY
    elif len(names) == 1 or problem == "multi_label_classification":
        activation = Activation.SIGMOID
    else:
        activation = Activation.SOFTMAX
    return ClassifierRecipe(kind=kind, activation=activation, labels=names)


def activation_of(file: Path, named: str) -> Activation:
    """The activation of a class of torch.nn by its dotted name. Raises ModelRefused for any other."""
    found = ACTIVATIONS.get(named.rpartition(".")[2])
    if found is None or not re.fullmatch(r"torch\.nn(\.modules\.\w+)?\.\w+", named):
        raise ModelRefused(f"{file}: activation_fn {named} is not one of torch.nn's {', '.join(ACTIVATIONS)}")
    return found
