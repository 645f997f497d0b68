"""The repositories that sentence-transformers and PyLate write: modules.json and a folder a module.

All forms of versions 2 to 6: SentenceTransformer, SparseEncoder, CrossEncoder, MultiVectorEncoder and PyLate's ColBERT.
Reads JSON only.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_worker.heads.pooling import POOLINGS
from gpu_worker.repository import late_interaction, text_settings, transformers_form
from gpu_worker.repository.files import check_inside, read_object
from gpu_worker.repository.late_interaction import Form, Mask
from gpu_worker.repository.recipe import (
    ClassifierRecipe,
    DenseRecipe,
    Layer,
    MultiVectorRecipe,
    Recipe,
    SparseRecipe,
    WeightsOf,
)
from gpu_worker.repository.text_settings import TextSettings
from shared.errors import ModelRefused
from shared.vectors import Activation

LEGACY_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
TASKS: dict[str, WeightsOf] = {
    "feature-extraction": "encoder",
    "fill-mask": "masked-lm",
    "sequence-classification": "sequence-classification",
    "text-generation": "causal-lm",
}
TOKENS, SENTENCE, SCORES = "token_embeddings", "sentence_embedding", "scores"


@dataclass(slots=True)
class _Reading:
    """What the modules said so far. Layers are collected by the feature that they write."""

    path: Path
    described: dict[str, Any]
    trunk: str | None = None
    weights_of: WeightsOf = "encoder"
    texts: TextSettings = field(default_factory=TextSettings)
    pylate: bool = False
    pooling: DenseRecipe | None = None
    splade: SparseRecipe | None = None
    yes_no: tuple[int, int | None] | None = None
    masks: list[Mask] = field(default_factory=list)
    layers: dict[str, list[Layer]] = field(default_factory=lambda: {TOKENS: [], SENTENCE: [], SCORES: []})

    @property
    def late(self) -> Form | None:
        return late_interaction.form_of(self.described, self.path / "config.json", self.pylate)


def read(path: Path, modules: list[dict[str, Any]], described: dict[str, Any]) -> Recipe:
    """`described` is config_sentence_transformers.json. Raises ModelRefused, naming file and key."""
    reading = _Reading(path, described)
    if not isinstance(modules, list):
        raise ModelRefused(f"{path / 'modules.json'} must hold a list of modules")
    for module in modules:
        try:
            named, folder = str(module["type"]), str(module["path"])
        except (KeyError, TypeError):
            raise ModelRefused(f"{path / 'modules.json'}: a module lacks type or path") from None
        origin, _, kind = named.rpartition(".")
        reader = READERS.get(kind)
        if reader is None:
            known = ", ".join(sorted(READERS))
            raise ModelRefused(f"{path / 'modules.json'}: type {named} is not one of {known}")
        if origin.partition(".")[0] not in ("sentence_transformers", "pylate"):
            raise ModelRefused(f"{path / 'modules.json'}: type {named} is code of its repository, which is not run")
        check_inside(path / "modules.json", folder)
        reading.pylate |= origin.startswith("pylate.")
        reader(reading, folder)
    if reading.trunk is None:
        raise ModelRefused(f"{path / 'modules.json'}: there is no Transformer module")
    texts = reading.texts
    return Recipe(
        trunk=reading.trunk,
        weights_of=reading.weights_of,
        max_tokens=texts.max_tokens,
        truncation_side=texts.truncation_side,
        lowercase=texts.lowercase,
        config=texts.config,
        **_heads(reading),
    )


def _heads(reading: _Reading) -> dict[str, Any]:
    """Which heads the modules make up."""
    path = reading.path / (reading.trunk or "")
    config = read_object(path / "config.json")
    if reading.late and reading.weights_of == "encoder":
        return _late(reading, reading.late)
    for key in (key for key, value in reading.texts.late.items() if value is not None):
        raise ModelRefused(f"{reading.texts.named}: {key} is for models of late interaction, which this is not")
    if reading.yes_no is not None:
        found = transformers_form.yes_no(config, reading.texts, reading.yes_no)
        return {"classifier": replace(found, activation=_activation(reading, found.activation))}
    if reading.weights_of == "sequence-classification":
        found = transformers_form.classifier(path, config, "sequence", reading.texts)
        return {"classifier": replace(found, activation=_activation(reading, found.activation))}
    if reading.layers[SCORES]:
        return {"classifier": _pooled_classifier(reading)}
    if reading.splade is not None:
        return {"sparse": reading.splade}
    if reading.weights_of != "encoder":
        raise ModelRefused(f"{reading.path / 'modules.json'}: no module makes vectors or scores of the model's logits")
    if reading.layers[TOKENS]:
        raise ModelRefused(f"{reading.path / 'modules.json'}: layers over token_embeddings need a MultiVectorEncoder")
    dense = replace(reading.pooling or DenseRecipe(), allowed_dimensions=transformers_form.matryoshka(config))
    return {"dense": _with_layers(dense, reading.layers[SENTENCE]), "multi_vector": MultiVectorRecipe()}


def _late(reading: _Reading, form: Form) -> dict[str, Any]:
    """A last Normalize becomes the recipe's own; PyLate's models have one without saying so."""
    modules, layers = reading.path / "modules.json", list(reading.layers[TOKENS])
    if any(layer.kind != "unit" for layer in reading.layers[SENTENCE]):
        raise ModelRefused(f"{modules}: layers over sentence_embedding make no token vectors")
    if form is Form.OLD_PYLATE and not layers:
        raise ModelRefused(f"{modules}: there is no Dense, and a projection of token vectors is wanted")
    normalize = form is not Form.NATIVE
    if layers and layers[-1].kind == "unit":
        normalize = True
        layers.pop()
    mean = reading.described.get("similarity_fn_name") == "meanmaxsim"
    file = reading.path / "config_sentence_transformers.json"
    return {
        "multi_vector": MultiVectorRecipe(layers=tuple(layers), mean=mean, normalize=normalize),
        "late_interaction": late_interaction.of_modules(form, file, reading.described, reading.texts, reading.masks),
    }


def _with_layers(dense: DenseRecipe, layers: list[Layer]) -> DenseRecipe:
    """A last Normalize becomes the recipe's own, which a request may switch off and a cut repeats."""
    normalize = bool(layers) and layers[-1].kind == "unit"
    return replace(dense, layers=tuple(layers[:-1] if normalize else layers), normalize=normalize)


def _pooled_classifier(reading: _Reading) -> ClassifierRecipe:
    """A CrossEncoder whose scores come from pooled rows through Dense layers."""
    layers = reading.layers[SENTENCE] + reading.layers[SCORES]
    width = layers[-1].outputs
    activation = _activation(reading, Activation.SIGMOID if width == 1 else Activation.IDENTITY)
    return ClassifierRecipe(
        kind="sequence",
        activation=activation,
        labels=tuple(f"LABEL_{index}" for index in range(width)),
        pooled=replace(reading.pooling or DenseRecipe(), layers=tuple(layers)),
    )


def _activation(reading: _Reading, fallback: Activation) -> Activation:
    """A CrossEncoder's own, where its files name one."""
    named = reading.described.get("activation_fn")
    if named:
        return transformers_form.activation_of(reading.path / "config_sentence_transformers.json", str(named))
    return fallback


def _transformer(reading: _Reading, folder: str) -> None:
    path = reading.path / folder
    texts, file = text_settings.read(path), path / "sentence_bert_config.json"
    if texts.task not in TASKS:
        raise ModelRefused(f"{file}: transformer_task {texts.task} is not one of {', '.join(TASKS)}")
    reading.trunk, reading.texts, reading.weights_of = folder, texts, TASKS[texts.task]
    if texts.chat and reading.weights_of not in ("causal-lm", "sequence-classification"):
        raise ModelRefused(f"{file}: modality_config asks for a chat template, which only rerankers may have here")
    read_object(path / "config.json")


def _masked_lm(reading: _Reading, folder: str) -> None:
    _transformer(reading, folder)
    reading.weights_of = "masked-lm"


def _pooling(reading: _Reading, folder: str) -> None:
    file = reading.path / folder / "config.json"
    config = read_object(file)
    named = config.get("pooling_mode")
    if named is None:
        modes = [mode for key, mode in LEGACY_POOLINGS.items() if config.get(key)] or ["mean"]
    else:
        modes = [named] if isinstance(named, str) else list(named)
    wrong = [mode for mode in modes if mode not in POOLINGS]
    if wrong or not modes:
        raise ModelRefused(f"{file}: pooling_mode {'+'.join(map(str, wrong))} is not one of {', '.join(POOLINGS)}")
    reading.pooling = DenseRecipe(poolings=tuple(modes), include_prompt=bool(config.get("include_prompt", True)))


def _dense(reading: _Reading, folder: str) -> None:
    file = reading.path / folder / "config.json"
    config = read_object(file)
    source = config.get("module_input_name") or (TOKENS if reading.late else SENTENCE)
    target = config.get("module_output_name") or source
    if reading.late is Form.OLD_PYLATE:
        source = target = TOKENS  # where PyLate's Dense works, whatever its file says
    if (source, target) not in ((TOKENS, TOKENS), (SENTENCE, SENTENCE), (SENTENCE, SCORES), (SCORES, SCORES)):
        raise ModelRefused(f"{file}: module_input_name {source} with module_output_name {target} is not supported")
    try:
        inputs, outputs = int(config["in_features"]), int(config["out_features"])
    except (KeyError, TypeError, ValueError):
        raise ModelRefused(f"{file}: in_features and out_features must be numbers") from None
    residual = bool(config.get("use_residual"))
    keys = {"weight": "linear.weight"} | ({"bias": "linear.bias"} if config.get("bias", True) else {})
    if residual and inputs != outputs:
        keys["residual"] = "residual.weight"
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    if not re.fullmatch(r"torch\.nn\.modules\.(activation|linear)\.\w+", activation):
        raise ModelRefused(f"{file}: activation_function {activation} is none of torch.nn")
    reading.layers[target].append(
        Layer(
            kind="dense",
            inputs=inputs,
            outputs=outputs,
            activation=activation,
            residual=residual,
            weights=f"{folder}/model",
            keys=keys,
        )
    )


def _layer_norm(reading: _Reading, folder: str) -> None:
    width = int(read_object(reading.path / folder / "config.json").get("dimension", 0))
    keys = {"weight": "norm.weight", "bias": "norm.bias"}
    layer = Layer(kind="layer-norm", inputs=width, outputs=width, weights=f"{folder}/model", keys=keys)
    reading.layers[SENTENCE].append(layer)


def _normalize(reading: _Reading, folder: str) -> None:
    config = read_object(reading.path / folder / "config.json", missing={})
    source = config.get("module_input_name") or SENTENCE
    if source not in (TOKENS, SENTENCE) or config.get("module_output_name", source) not in (source, None):
        raise ModelRefused(f"{reading.path / folder / 'config.json'}: module_input_name {source} is not supported")
    reading.layers[source].append(Layer(kind="unit"))


def _splade(reading: _Reading, folder: str) -> None:
    file = reading.path / folder / "config.json"
    config = read_object(file)
    strategy, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if strategy not in ("max", "sum"):
        raise ModelRefused(f"{file}: pooling_strategy {strategy} is not one of max, sum")
    if activation not in ("relu", "log1p_relu"):
        raise ModelRefused(f"{file}: activation_function {activation} is not one of relu, log1p_relu")
    if reading.weights_of != "masked-lm":
        raise ModelRefused(f"{file}: SpladePooling needs a Transformer with transformer_task fill-mask")
    reading.splade = SparseRecipe(kind="splade", strategy=strategy, logs=2 if activation == "log1p_relu" else 1)


def _logit_score(reading: _Reading, folder: str) -> None:
    file = reading.path / folder / "config.json"
    config = read_object(file)
    yes, no = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(yes, int) or not (no is None or isinstance(no, int)):
        raise ModelRefused(f"{file}: true_token_id must be a token id, and false_token_id one or null")
    reading.yes_no = (yes, no)


def _mask(reading: _Reading, folder: str) -> None:
    reading.masks.append(late_interaction.mask_of(reading.path / folder / "config.json"))


def _token_pooling(reading: _Reading, folder: str) -> None:
    named = f"{reading.path / 'modules.json'}: HierarchicalTokenPooling"
    raise ModelRefused(f"{named}: documents whose token vectors are pooled could not be scored on the worker")


def _nothing(reading: _Reading, folder: str) -> None:
    """Modules that do nothing to vectors at inference."""


READERS = {
    "Transformer": _transformer,
    "MLMTransformer": _masked_lm,
    "Pooling": _pooling,
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": _normalize,
    "Dropout": _nothing,
    "SpladePooling": _splade,
    "LogitScore": _logit_score,
    "MultiVectorMask": _mask,
    "HierarchicalTokenPooling": _token_pooling,
}
