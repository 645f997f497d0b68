"""Reads a transformers model from its config.json. It reads JSON only.

The key `architectures` tells plain repositories apart: Stanford ColBERT, ColQwen2, GritLM, classifiers, listwise
rerankers, masked and causal language models. As in sentence-transformers, an encoder without a head gets mean pooling,
and a causal language model pools its last token. Other heads are refused.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from gpu_worker.repository import late_interaction, rerankers, text_settings
from gpu_worker.repository.files import checked, one_of, read_object, whole
from gpu_worker.repository.recipe import (
    ClassifierRecipe,
    DenseRecipe,
    LayerRecipe,
    MessageRecipe,
    MultiVectorRecipe,
    Recipe,
    SparseRecipe,
)
from gpu_worker.repository.weights import ENCODERS
from shared.card import YES
from shared.errors import ModelRefused
from shared.vectors import Activation

PROCESS_REWARDS = "Qwen2ForProcessRewardModel"
"""Architecture that rewards steps of a solution at the tokens that end them (Qwen2.5-Math-PRM, arXiv:2501.07301)."""
BIDIRECTIONAL = "LlamaBidirectionalForSequenceClassification"
"""Architecture of NVIDIA's rerankers, such as llama-nemotron-rerank-1b-v2; its code is NeMo AutoModel's."""
GRITLM_MARK = "<|embed|>\n"
"""End of the instruction in a GritLM prompt (arXiv:2402.09906)."""
QUERIES = "ColQwen2ForRetrieval"
"""Architecture of late interaction between queries and images of documents (arXiv:2407.01449)."""
VISION_LANGUAGE_MODELS = ("qwen2_vl", "qwen2_5_vl")
"""Model types of its `vlm_config` of which the text side is served."""
WITHOUT_HEAD = re.compile(r"|(?!\w*For[A-Z])\w+Model|\w+ForPreTraining|\w+ForCausalLM")
"""Pattern of architectures whose encoder can embed texts."""
ACTIVATIONS = {
    "Identity": Activation.IDENTITY,
    "Sigmoid": Activation.SIGMOID,
    "Softmax": Activation.SOFTMAX,
    "Tanh": Activation.TANH,
}


def read(path: Path, name: str, answers: bool = False) -> Recipe:
    """The recipe of a repository without modules.json, requested as `name`. Raises ModelRefused.

    `answers`: whether a score template names the tokens that a causal language model scores by.
    """
    config = read_object(path / "config.json")
    architecture = str((config.get("architectures") or [""])[0])
    unread = text_settings.unread(path)
    return Recipe(
        max_tokens=text_settings.tokenizer_limit(path),
        notice=f"not read, for want of a modules.json: {', '.join(unread)}" if unread else "",
        **_heads(path, config, architecture, answers or _is_reranker(path, config, name)),
    )


def _heads(path: Path, config: dict[str, Any], architecture: str, reranks: bool) -> dict[str, Any]:
    """The heads of an architecture; `reranks`: whether a language model is a reranker."""
    causal = architecture.endswith("ForCausalLM") and config.get("is_causal", True)
    pooling = "lasttoken" if causal else "mean"  # the only token of a causal model that has seen the others
    dense = DenseRecipe(poolings=(pooling,), allowed_dimensions=matryoshka(path, config))
    outputs = {"dense": dense, "multi_vector": MultiVectorRecipe()}
    if architecture == BIDIRECTIONAL:
        return _bidirectional(path, config)
    if architecture.endswith("ForSequenceClassification"):
        return {"weights_of": "sequence-classification", "classifier": classifier(path, config, "sequence")}
    if architecture.endswith("ForTokenClassification"):
        return {"weights_of": "token-classification", "classifier": classifier(path, config, "tokens")}
    if late_interaction.is_stanford(config):
        linear = LayerRecipe(kind="dense", weights="model", keys={"weight": "linear.weight"})
        late = late_interaction.of_stanford(path / "artifact.metadata")
        return {"multi_vector": MultiVectorRecipe(layers=(linear,)), "late_interaction": late}
    if architecture == QUERIES:
        return _queries(path, config)
    if "gritlm" in str(config.get("auto_map", "")).lower():
        # Its own code is Mistral without the causal mask, which transformers' Mistral does with this setting.
        grit = {"config": {"is_causal": False}, "instruction_mark": GRITLM_MARK}
        return outputs | grit | {"dense": replace(dense, poolings=("mean",), normalize=True)}
    if architecture == PROCESS_REWARDS:
        return {"classifier": _process_rewards(path, config)}
    if architecture.endswith("ForCausalLM") and reranks:
        return {"weights_of": "causal-lm", "classifier": yes_no(config)}
    if architecture == rerankers.LISTWISE:
        return rerankers.read_listwise(path, config)
    if architecture.endswith("ForConditionalGeneration") and reranks:
        raise ModelRefused(
            f"{path / 'config.json'}: {architecture} is a reranker that writes its ranking as text or reads images, "
            "which is not served"
        )
    _check_no_chat_template(path)
    if architecture.endswith("ForMaskedLM"):
        # As SentenceTransformer and as SparseEncoder read it: one pass gives both.
        return outputs | {"weights_of": "masked-lm", "sparse": SparseRecipe(kind="splade")}
    encoder = architecture.endswith("ForConditionalGeneration") and config.get("model_type") in ENCODERS
    if not encoder and not WITHOUT_HEAD.fullmatch(architecture):
        raise ModelRefused(f"{path / 'config.json'}: architectures {architecture} has a head that is not served")
    return outputs


def _chat_templates(path: Path) -> dict[str, str]:
    """Reads the chat templates of a tokenizer by their place, as transformers 5 does."""
    settings = path / "tokenizer_config.json"
    template = read_object(settings, missing={}).get("chat_template")
    files = [path / "chat_template.jinja", *sorted(path.glob("additional_chat_templates/*.jinja"))]
    templates = {} if template is None else {f"{settings}: chat_template": str(template)}
    return templates | {str(file): file.read_text(encoding="utf-8") for file in files if file.is_file()}


def _check_no_chat_template(path: Path) -> None:
    """Raises ModelRefused where sentence-transformers puts texts into a template: rows of bare texts would differ."""
    for place in _chat_templates(path):
        raise ModelRefused(
            f"{place}: without a modules.json sentence-transformers puts every text into this chat template, which is "
            "not done here: save the model by sentence-transformers to embed texts so, or "
            "take it away to embed texts as they are"
        )


def _is_reranker(path: Path, config: dict[str, Any], name: str) -> bool:
    """Whether a language model is a reranker: by the roles in its template, else by its name.

    Raises ModelRefused for zerank of before May 2026, whose question stands in its code alone.
    """
    if "zeranker" in str(config.get("auto_map", "")).lower():
        raise ModelRefused(
            f"{path / 'config.json'}: this zerank scores by code of its repository, which is not run: take a newer "
            f"revision, which has a modules.json, or {rerankers.SAY}"
        )
    asks = rerankers.names_roles("".join(_chat_templates(path).values()))
    return asks or any("rerank" in part.lower() for part in Path(name).parts[-3:])  # .../NAME/snapshots/REVISION


def yes_no(config: dict[str, Any], ids: tuple[int, int | None] | None = None) -> ClassifierRecipe:
    """Makes a yes/no reranker. `ids` None: the ids of these words, and for Qwen3 a built-in template."""
    return ClassifierRecipe(
        kind="yes-no",
        activation=Activation.SIGMOID,
        labels=YES,
        yes_no=ids,
        builtin_template=ids is None and config.get("model_type") == "qwen3",
        needs_template=ids is None,
    )


def _bidirectional(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Makes NVIDIA's reranker, over Llama without a causal mask: a linear layer over pooled rows, by a temperature."""
    file = path / "config.json"
    head = classifier(path, config, "sequence")
    poolings = {"avg": "mean", "cls": "cls", "last": "lasttoken"}
    pooling = poolings[one_of(config.get("pooling", "avg"), poolings, f"{file}: pooling")]
    temperature = config.get("temperature", 1.0)
    if not isinstance(temperature, int | float) or not temperature > 0:
        raise ModelRefused(f"{file}: temperature {temperature!r} must be a number above 0")
    score = LayerRecipe(kind="dense", outputs=len(head.labels), weights="model", keys={"weight": "score.weight"})
    pooled = DenseRecipe(poolings=(pooling,), layers=(score,))
    return {
        "config": {"model_type": "llama", "is_causal": config.get("is_causal", False)},
        "classifier": replace(head, pooled=pooled, needs_template=True, logit_sigma=float(temperature)),
    }


def _queries(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Makes the side of queries of ColQwen2: as its class and its processor in transformers read and compute them."""
    file, processor = path / "config.json", path / "processor_config.json"
    part = checked(config.get("vlm_config"), dict, f"{file}: vlm_config")
    one_of(part.get("model_type"), VISION_LANGUAGE_MODELS, f"{file}: vlm_config: model_type")
    prefix = read_object(processor, missing={}).get("query_prefix") or "Query: "
    projection = LayerRecipe(
        kind="dense",
        outputs=whole(config.get("embedding_dim", 128), f"{file}: embedding_dim"),
        weights="model",
        keys={role: f"embedding_proj_layer.{role}" for role in ("weight", "bias")},
    )
    return {
        "part": "vlm_config",
        "multi_vector": MultiVectorRecipe(layers=(projection,)),
        "message": MessageRecipe(
            query_prefix=checked(prefix, str, f"{processor}: query_prefix"), source=str(processor)
        ),
    }


def _process_rewards(path: Path, config: dict[str, Any]) -> ClassifierRecipe:
    """Makes a process reward model: two layers over every token, which its own code adds to transformers' Qwen2."""
    layers = tuple(
        LayerRecipe(
            kind="dense",
            activation=f"torch.nn.{activation}",
            weights="model",
            keys={role: f"score.{place}.{role}" for role in ("weight", "bias")},
        )
        for place, activation in ((0, "ReLU"), (2, "Identity"))
    )
    return replace(classifier(path, config, "tokens"), layers=layers)


def matryoshka(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Reads the dimensions that the model was trained to be cut to from config.json. Raises ModelRefused."""
    key = f"{path / 'config.json'}: matryoshka_dimensions"
    return tuple(sorted(whole(number, key) for number in checked(config.get("matryoshka_dimensions") or [], list, key)))


def classifier(path: Path, config: dict[str, Any], kind: Literal["sequence", "tokens"]) -> ClassifierRecipe:
    """Reads labels and activation from config.json.

    The activation is the one under sentence-transformers' key, else a sigmoid for one label or for several that may
    hold at once, else a softmax (none for a regression).
    """
    labels = config.get("id2label") or {str(index): f"LABEL_{index}" for index in range(config.get("num_labels", 2))}
    names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    named = (config.get("sentence_transformers") or {}).get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function")
    problem = config.get("problem_type")
    if named:
        activation = activation_of(path / "config.json", str(named))
    elif len(names) == 1 or problem == "multi_label_classification":
        activation = Activation.SIGMOID
    else:
        activation = Activation.IDENTITY if problem == "regression" else Activation.SOFTMAX
    return ClassifierRecipe(kind=kind, activation=activation, labels=names)


def activation_of(file: Path, named: str) -> Activation:
    """Finds the activation for the dotted name of a torch.nn class. Raises ModelRefused for any other."""
    activation = ACTIVATIONS.get(named.rpartition(".")[2])
    if activation is None or not re.fullmatch(r"torch\.nn(\.modules\.\w+)?\.\w+", named):
        raise ModelRefused(f"{file}: activation_fn {named} is not one of torch.nn's {', '.join(ACTIVATIONS)}")
    return activation
