"""Readers for the modules of a modules.json, in their order. A module reads features that earlier modules wrote.

A module that reads a feature which no earlier module writes is refused; sentence-transformers fails on it at the first
text. This module reads JSON only.

The list itself is checked entry by entry before any module is read.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpu_worker.repository import late_interaction, static_format, text_settings
from gpu_worker.repository.files import check_inside, check_keys, one_of, read_object, whole
from gpu_worker.repository.late_interaction import LateInteractionFormat, MaskToken
from gpu_worker.repository.recipe import POOLINGS, DenseRecipe, LayerRecipe, SparseRecipe, WeightsOf
from gpu_worker.repository.text_settings import TextSettings
from shared.errors import ModelRefused

LEGACY_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
WIDTHS = ("embedding_dimension", "word_embedding_dimension")
"""Keys of a Pooling for the width of the rows that it pools. The width must be there, though nothing uses it."""
POOLING_KEYS = {*LEGACY_POOLINGS, *WIDTHS, "pooling_mode", "include_prompt"}
TASKS: dict[str, WeightsOf] = {
    "feature-extraction": "encoder",
    "fill-mask": "masked-lm",
    "sequence-classification": "sequence-classification",
    "text-generation": "causal-lm",
}
STRATEGIES: dict[str, Literal["max", "sum"]] = {"max": "max", "sum": "sum"}
LOGARITHMS = {"relu": 1, "log1p_relu": 2}
"""How often a SpladePooling takes the logarithm, by its activation."""
TOKENS, SENTENCE, SCORES = "token_embeddings", "sentence_embedding", "scores"
LOGITS = "causal_logits"
CHAINS = ((TOKENS, TOKENS), (SENTENCE, SENTENCE), (SENTENCE, SCORES), (SCORES, SCORES))
"""Features that a Dense may read and write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module: its class without the package, the package, and its folder inside the repository."""

    kind: str
    origin: str
    folder: str


@dataclass(slots=True)
class ModuleReading:
    """Settings collected from the modules so far. Layers are collected by the feature that they write; `written`
    are the features that a later module may read."""

    path: Path
    described: dict[str, Any]
    encoder: str | None = None
    weights_of: WeightsOf = "encoder"
    static: bool = False
    texts: TextSettings = field(default_factory=TextSettings)
    pylate: bool = False
    pooling: DenseRecipe | None = None
    splade: SparseRecipe | None = None
    yes_no: tuple[int, int | None] | None = None
    masks: list[MaskToken] = field(default_factory=list)
    layers: dict[str, list[LayerRecipe]] = field(default_factory=lambda: {TOKENS: [], SENTENCE: [], SCORES: []})
    written: set[str] = field(default_factory=set)

    @property
    def late(self) -> LateInteractionFormat | None:
        """The format in which late interaction is written down; None for other models."""
        return late_interaction.format_of(self.described, self.path / "config.json", self.pylate)

    @property
    def modules(self) -> Path:
        """The file that lists the modules."""
        return self.path / "modules.json"

    def need(self, feature: str, folder: str) -> None:
        """Raises ModelRefused where no module before the one in `folder` writes what it reads."""
        if feature not in self.written:
            raise ModelRefused(f"{self.modules}: {folder} reads {feature}, which no module before it makes")
        if feature == SENTENCE and SCORES in self.written:
            raise ModelRefused(f"{self.modules}: {folder} works on {feature} behind the module that makes scores of it")


def listed_modules(file: Path, modules: Any, kinds: Collection[str]) -> Iterator[Module]:
    """Yields the entries of modules.json, of the classes `kinds`, in their order. Raises ModelRefused."""
    if not isinstance(modules, list):
        raise ModelRefused(f"{file} must hold a list of modules")
    if not modules:
        raise ModelRefused(f"{file} holds no module")
    names = set()
    for module in modules:
        try:
            named, folder = module["type"], module["path"]
        except (KeyError, TypeError):
            raise ModelRefused(f"{file}: a module lacks type or path") from None
        entry = module_of(file, named, folder, kinds)
        name = module.get("name")
        if not isinstance(name, str) or not name or "." in name:
            raise ModelRefused(f"{file}: the name of {entry.kind} is {name!r}, it must be a text without a dot")
        if name in names:
            raise ModelRefused(f"{file}: two modules have the name {name!r}, and the first of them would not be run")
        names.add(name)
        yield entry


def module_of(file: Path, named: Any, folder: Any, kinds: Collection[str]) -> Module:
    """Checks a module of the type `named` in `folder`. Raises ModelRefused."""
    if not (isinstance(named, str) and isinstance(folder, str)):
        raise ModelRefused(f"{file}: type {named!r} and path {folder!r} of a module must be texts")
    origin, _, kind = named.rpartition(".")
    if kind not in kinds:
        raise ModelRefused(f"{file}: type {named} is not one of {', '.join(sorted(kinds))}")
    if origin.partition(".")[0] not in ("sentence_transformers", "pylate"):
        raise ModelRefused(f"{file}: type {named} is code of its repository, which is not run")
    check_inside(file, folder)
    return Module(kind=kind, origin=origin, folder=folder)


def transformer(reading: ModuleReading, folder: str) -> None:
    """Reads an encoder and its text settings; only the first module may be one."""
    path = reading.path / folder
    if reading.encoder is not None:
        raise ModelRefused(f"{reading.modules}: there is a second Transformer, {folder or 'at the root'}")
    texts = text_settings.read(path)
    task = one_of(texts.task, TASKS, f"{texts.named}: transformer_task")
    reading.encoder, reading.texts, reading.weights_of = folder, texts, TASKS[task]
    reading.written.add(text_settings.OUTPUTS[task][1])
    if texts.chat and reading.weights_of not in ("causal-lm", "sequence-classification"):
        raise ModelRefused(
            f"{texts.named}: modality_config asks for a chat template, which only rerankers may have here"
        )
    read_object(path / "config.json")


def masked_lm(reading: ModuleReading, folder: str) -> None:
    """Reads the encoder of a masked language model, under its older name."""
    transformer(reading, folder)
    reading.weights_of = "masked-lm"


def static_embedding(reading: ModuleReading, folder: str) -> None:
    """Reads a StaticEmbedding: the mean of the rows that a table has for a text's tokens. Only the first module may be
    one. Its folder has a tokenizer and the table, and no settings."""
    if reading.encoder is not None:
        raise ModelRefused(
            f"{reading.modules}: {folder or 'the folder'} holds a static embedding, and is not the first"
        )
    reading.encoder, reading.static, reading.pooling = folder, True, DenseRecipe()
    reading.texts = static_format.text_settings(reading.path / folder)
    reading.written.add(SENTENCE)


def sparse_static_embedding(reading: ModuleReading, folder: str) -> None:
    """Refuses a SparseStaticEmbedding, which is read for the queries of inference-free SPLADE alone."""
    named = f"{reading.modules}: SparseStaticEmbedding"
    raise ModelRefused(f"{named}: only a Router may have it, for queries, with a SpladePooling for documents")


def pooling(reading: ModuleReading, folder: str) -> None:
    """Reads a Pooling: one row a text. A second one starts from tokens again, so layers between them are dropped."""
    file = reading.path / folder / "config.json"
    config = read_object(file)
    reading.need(TOKENS, folder)
    if SCORES in reading.written:
        raise ModelRefused(f"{reading.modules}: {folder} pools behind the module that makes scores")
    check_keys(config, POOLING_KEYS, file, "which sentence-transformers' Pooling does not take")
    reading.pooling = DenseRecipe(
        poolings=_modes(file, config), include_prompt=bool(config.get("include_prompt", True))
    )
    width = next((key for key in WIDTHS if key in config), WIDTHS[0])
    whole(config.get(width), f"{file}: {width}")
    reading.layers[SENTENCE].clear()
    reading.written.add(SENTENCE)


def _modes(file: Path, config: dict[str, Any]) -> tuple[str, ...]:
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        modes = named if isinstance(named, list) and named else [named]
    else:
        modes = [mode for key, mode in LEGACY_POOLINGS.items() if config.get(key)] or ["mean"]
    return tuple(one_of(mode, POOLINGS, f"{file}: pooling_mode") for mode in modes)


def dense(reading: ModuleReading, folder: str) -> None:
    """Reads a linear layer with its activation."""
    file = reading.path / folder / "config.json"
    config = read_object(file)
    source = config.get("module_input_name") or (TOKENS if reading.late else SENTENCE)
    target = config.get("module_output_name") or source
    if reading.late is LateInteractionFormat.OLD_PYLATE:
        source = target = TOKENS  # PyLate's Dense works on tokens, whatever its file says
    if (source, target) not in CHAINS:
        raise ModelRefused(f"{file}: module_input_name {source} with module_output_name {target} is not supported")
    reading.need(source, folder)
    reading.written.add(target)
    inputs, outputs = (whole(config.get(key), f"{file}: {key}") for key in ("in_features", "out_features"))
    residual = bool(config.get("use_residual"))
    keys = {"weight": "linear.weight"} | ({"bias": "linear.bias"} if config.get("bias", True) else {})
    if residual and inputs != outputs:
        keys["residual"] = "residual.weight"
    reading.layers[target].append(
        LayerRecipe(
            kind="dense",
            inputs=inputs,
            outputs=outputs,
            activation=_activation(file, config),
            residual=residual,
            weights=f"{folder}/model",
            keys=keys,
        )
    )


def _activation(file: Path, config: dict[str, Any]) -> str:
    named = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if not isinstance(named, str) or not re.fullmatch(r"torch\.nn\.(modules\.(\w+\.)?)?[A-Z]\w*", named):
        raise ModelRefused(f"{file}: activation_function {named} is not the name of a class, such as torch.nn.Tanh")
    return named


def layer_norm(reading: ModuleReading, folder: str) -> None:
    """Reads a layer normalisation of pooled rows."""
    file = reading.path / folder / "config.json"
    reading.need(SENTENCE, folder)
    width = whole(read_object(file).get("dimension"), f"{file}: dimension")
    keys = {"weight": "norm.weight", "bias": "norm.bias"}
    layer = LayerRecipe(kind="layer-norm", inputs=width, outputs=width, weights=f"{folder}/model", keys=keys)
    reading.layers[SENTENCE].append(layer)


def normalize(reading: ModuleReading, folder: str) -> None:
    """Reads a Normalize, which scales rows to unit length; without its feature it does nothing, as in the original."""
    config = read_object(reading.path / folder / "config.json", missing={})
    source = config.get("module_input_name") or SENTENCE
    if source not in (TOKENS, SENTENCE) or config.get("module_output_name", source) not in (source, None):
        raise ModelRefused(f"{reading.path / folder / 'config.json'}: module_input_name {source} is not supported")
    if source in reading.written:
        reading.need(source, folder)
        reading.layers[source].append(LayerRecipe(kind="unit"))


def dropout(reading: ModuleReading, folder: str) -> None:
    """Reads a Dropout, which does nothing at inference but needs pooled vectors before it."""
    reading.need(SENTENCE, folder)


def splade(reading: ModuleReading, folder: str) -> None:
    """Reads a SpladePooling, which weighs vocabulary ids."""
    file = reading.path / folder / "config.json"
    config = read_object(file)
    strategy = one_of(config.get("pooling_strategy", "max"), STRATEGIES, f"{file}: pooling_strategy")
    activation = one_of(config.get("activation_function", "relu"), LOGARITHMS, f"{file}: activation_function")
    if reading.weights_of != "masked-lm":
        raise ModelRefused(f"{file}: SpladePooling needs a Transformer with transformer_task fill-mask before it")
    reading.splade = SparseRecipe(kind="splade", strategy=STRATEGIES[strategy], logs=LOGARITHMS[activation])
    reading.written.add(SENTENCE)


def logit_score(reading: ModuleReading, folder: str) -> None:
    """Reads a LogitScore, the score of a yes/no reranker."""
    file = reading.path / folder / "config.json"
    config = read_object(file)
    source = config.get("module_input_name", LOGITS)
    if source != LOGITS:
        raise ModelRefused(f"{file}: module_input_name {source} is not supported, only {LOGITS} is")
    reading.need(LOGITS, folder)
    yes, no = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(yes, int) or not (no is None or isinstance(no, int)):
        raise ModelRefused(f"{file}: true_token_id must be a token id, and false_token_id one or null")
    reading.yes_no = (yes, no)
    reading.written.add(SCORES)


def mask(reading: ModuleReading, folder: str) -> None:
    """Reads a MultiVectorMask, which selects the tokens that late interaction scores."""
    reading.masks.append(late_interaction.mask_of(reading.path / folder / "config.json"))


def token_pooling(reading: ModuleReading, folder: str) -> None:
    """Refuses a HierarchicalTokenPooling, which merges the vectors of a document's tokens."""
    named = f"{reading.modules}: HierarchicalTokenPooling"
    raise ModelRefused(f"{named}: documents whose token vectors are pooled could not be scored on the worker")


FIRST = ("Transformer", "MLMTransformer", "StaticEmbedding", "SparseStaticEmbedding")
"""Modules that texts go into: one of them must stand first."""
READERS = {
    "Transformer": transformer,
    "MLMTransformer": masked_lm,
    "StaticEmbedding": static_embedding,
    "SparseStaticEmbedding": sparse_static_embedding,
    "Pooling": pooling,
    "Dense": dense,
    "LayerNorm": layer_norm,
    "Normalize": normalize,
    "Dropout": dropout,
    "SpladePooling": splade,
    "LogitScore": logit_score,
    "MultiVectorMask": mask,
    "HierarchicalTokenPooling": token_pooling,
}
