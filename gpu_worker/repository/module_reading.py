"""Readers for the modules of a modules.json, in their order. A module reads features that earlier modules wrote.

A module that reads a feature which no earlier module writes is refused; sentence-transformers fails on it at the first
text. This module reads JSON only.

The list itself is checked entry by entry before any module is read.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

from gpu_worker.repository import late_interaction, static_format, text_settings
from gpu_worker.repository.files import check_inside, check_keys, checked, one_of, read_object, whole
from gpu_worker.repository.late_interaction import LateInteractionFormat, MaskToken
from gpu_worker.repository.recipe import POOLINGS, DenseRecipe, LayerRecipe, SparseRecipe, WeightsOf
from gpu_worker.repository.text_settings import LOGITS, SCORES, SENTENCE, TOKENS, TextSettings
from shared.errors import ModelRefused
from shared.vectors import TokenPooling

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
POOLING_SETTINGS = ("pool_factor", "num_protected_tokens", "normalize_embeddings", "tasks")
STRATEGIES: dict[str, Literal["max", "sum"]] = {"max": "max", "sum": "sum"}
LOGARITHMS = {"relu": 1, "log1p_relu": 2}
"""How often a SpladePooling takes the logarithm, by its activation."""
CHAINS = ((TOKENS, TOKENS), (SENTENCE, SENTENCE), (SENTENCE, SCORES), (SCORES, SCORES))
"""Features that a Dense may read and write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module: its class without the package, whether that is PyLate's, and its folder inside the repository."""

    kind: str
    pylate: bool
    folder: str


@dataclass(slots=True)
class ModuleReading:
    """Settings collected from the modules so far. Layers are collected by the feature that they write; `written`
    are the features that a later module may read. `late` is the format in which late interaction is written down.
    `pools_tokens`: whether a module pools token rows, be it by a factor of 1, which is no `token_pooling`."""

    path: Path
    late: LateInteractionFormat | None
    encoder: str = ""
    weights_of: WeightsOf = "encoder"
    static: bool = False
    texts: TextSettings = field(default_factory=TextSettings)
    pooling: DenseRecipe | None = None
    splade: SparseRecipe | None = None
    yes_no: tuple[int, int | None] | None = None
    masks: list[MaskToken] = field(default_factory=list)
    pools_tokens: bool = False
    token_pooling: TokenPooling | None = None
    layers: dict[str, list[LayerRecipe]] = field(default_factory=lambda: {TOKENS: [], SENTENCE: [], SCORES: []})
    written: set[str] = field(default_factory=set)

    @property
    def modules(self) -> Path:
        """The file that lists the modules."""
        return self.path / "modules.json"

    def need(self, feature: str, folder: str) -> None:
        """Raises ModelRefused where no module before the one in `folder` writes what it reads."""
        if feature not in self.written:
            raise ModelRefused(f"{self.modules}: {folder} reads {feature}, which no module before it makes")
        if feature in (TOKENS, SENTENCE) and SCORES in self.written:
            raise ModelRefused(f"{self.modules}: {folder} works on {feature} behind the module that makes scores")


def listed_modules(file: Path, modules: Any, kinds: Collection[str]) -> list[Module]:
    """Checks the entries of modules.json, of the classes `kinds`, in their order. Raises ModelRefused."""
    listed: dict[str, Module] = {}
    for entry in checked(modules, list, f"{file}: its content"):
        checked(entry, dict, f"{file}: a module")
        named, folder, name = (
            checked(entry.get(key), str, f"{file}: {key} of a module") for key in ("type", "path", "name")
        )
        module = module_of(file, named, folder, kinds)
        if not name or "." in name:
            raise ModelRefused(f"{file}: the name of {module.kind} is {name!r}, it must be a text without a dot")
        if name in listed:
            raise ModelRefused(f"{file}: two modules have the name {name!r}, and the first of them would not be run")
        listed[name] = module
    if not listed:
        raise ModelRefused(f"{file} holds no module")
    return list(listed.values())


def module_of(file: Path, named: str, folder: str, kinds: Collection[str]) -> Module:
    """Checks a module of the type `named` in `folder`. Raises ModelRefused."""
    origin, _, kind = named.rpartition(".")
    package = origin.partition(".")[0]
    if kind not in kinds:
        raise ModelRefused(f"{file}: type {named} is not one of {', '.join(sorted(kinds))}")
    if package not in ("sentence_transformers", "pylate"):
        raise ModelRefused(f"{file}: type {named} is code of its repository, which is not run")
    check_inside(file, folder)
    return Module(kind=kind, pylate=package == "pylate", folder=folder)


def read(path: Path, modules: Sequence[Module], described: dict[str, Any]) -> ModuleReading:
    """Reads what these modules of the repository at `path` say; `described` is config_sentence_transformers.json.

    Raises ModelRefused, naming file and key.
    """
    pylate = any(module.pylate for module in modules)
    reading = ModuleReading(path, late_interaction.format_of(described, path / "config.json", pylate))
    for place, module in enumerate(modules, 1):
        if module.kind in REFUSED:
            raise ModelRefused(f"{reading.modules}: {module.kind}: {REFUSED[module.kind]}")
        if (module.kind in FIRST) != (place == 1):
            must = f"the first module, and no other, must be one of {', '.join(FIRST)}"
            raise ModelRefused(f"{reading.modules}: {must}, and module {place} is {module.kind}")
        if reading.pools_tokens:
            raise ModelRefused(f"{reading.modules}: {module.kind} behind the module that pools token vectors")
        kind, file = KINDS[module.kind], path / module.folder / "config.json"
        config = read_object(file, missing=None if kind.configured else {})
        if kind.reads:
            reading.need(kind.reads, module.folder)
        kind.read(reading, module, config, file)
        reading.written.update(kind.writes)
    return reading


def _transformer(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """Reads a Transformer: an encoder and its text settings."""
    reading.encoder, reading.texts = module.folder, text_settings.read(file.parent)
    texts = reading.texts
    reading.weights_of = "masked-lm" if module.kind == "MLMTransformer" else texts.task.weights_of
    reading.written.add(texts.task.feature)


def _static_embedding(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """The mean of the rows that a table has for a text's tokens. Its folder has a tokenizer and the table."""
    reading.encoder, reading.static, reading.pooling = module.folder, True, DenseRecipe()
    reading.texts = TextSettings(max_tokens=static_format.token_limit(file.parent))


def _pooling(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """Reads a Pooling, which makes one row a text. A second Pooling starts from tokens again, so layers between them
    are dropped."""
    check_keys(config, POOLING_KEYS, file, "which sentence-transformers' Pooling does not take")
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        modes = named if isinstance(named, list) and named else [named]
    else:
        modes = [mode for key, mode in LEGACY_POOLINGS.items() if config.get(key)] or ["mean"]
    reading.pooling = DenseRecipe(
        poolings=tuple(one_of(mode, POOLINGS, f"{file}: pooling_mode") for mode in modes),
        include_prompt=bool(config.get("include_prompt", True)),
    )
    width = next((key for key in WIDTHS if key in config), WIDTHS[0])
    whole(config.get(width), f"{file}: {width}")
    reading.layers[SENTENCE].clear()


def _dense(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """Reads a Dense: a linear layer with its activation."""
    source = config.get("module_input_name") or (TOKENS if reading.late else SENTENCE)
    target = config.get("module_output_name") or source
    if reading.late is LateInteractionFormat.OLD_PYLATE:
        source = target = TOKENS  # PyLate's Dense works on tokens, whatever its file says
    if (source, target) not in CHAINS:
        raise ModelRefused(f"{file}: module_input_name {source} with module_output_name {target} is not supported")
    reading.need(source, module.folder)
    reading.written.add(target)
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if not isinstance(activation, str) or not re.fullmatch(r"torch\.nn\.(modules\.(\w+\.)?)?[A-Z]\w*", activation):
        raise ModelRefused(
            f"{file}: activation_function {activation} is not the name of a class, such as torch.nn.Tanh"
        )
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
            activation=activation,
            residual=residual,
            weights=f"{module.folder}/model",
            keys=keys,
        )
    )


def _layer_norm(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """Reads a LayerNorm of pooled rows."""
    width = whole(config.get("dimension"), f"{file}: dimension")
    keys = {"weight": "norm.weight", "bias": "norm.bias"}
    layer = LayerRecipe(kind="layer-norm", inputs=width, outputs=width, weights=f"{module.folder}/model", keys=keys)
    reading.layers[SENTENCE].append(layer)


def _normalize(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """Reads a Normalize, which scales rows to unit length; without its feature it does nothing, as in the original."""
    source = config.get("module_input_name") or SENTENCE
    if source not in (TOKENS, SENTENCE) or config.get("module_output_name", source) not in (source, None):
        raise ModelRefused(f"{file}: module_input_name {source} is not supported")
    if source in reading.written:
        reading.need(source, module.folder)
        reading.layers[source].append(LayerRecipe(kind="unit"))


def _dropout(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """Ignores a Dropout, which does nothing at inference."""


def _splade(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """Weights of vocabulary ids."""
    strategy = one_of(config.get("pooling_strategy", "max"), STRATEGIES, f"{file}: pooling_strategy")
    activation = one_of(config.get("activation_function", "relu"), LOGARITHMS, f"{file}: activation_function")
    if reading.weights_of != "masked-lm":
        raise ModelRefused(f"{file}: SpladePooling needs a Transformer with transformer_task fill-mask before it")
    reading.splade = SparseRecipe(kind="splade", strategy=STRATEGIES[strategy], logs=LOGARITHMS[activation])


def _logit_score(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """Reads a LogitScore: the score of a yes/no reranker."""
    one_of(config.get("module_input_name", LOGITS), (LOGITS,), f"{file}: module_input_name")
    yes, no = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(yes, int) or not (no is None or isinstance(no, int)):
        raise ModelRefused(f"{file}: true_token_id must be a token id, and false_token_id one or null")
    reading.yes_no = (yes, no)


def _mask(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """Reads a MultiVectorMask: the tokens that late interaction scores."""
    reading.masks.append(late_interaction.mask_of(config, file))


def _token_pooling(reading: ModuleReading, module: Module, config: dict[str, Any], file: Path) -> None:
    """Reads a HierarchicalTokenPooling: token rows of documents that become fewer. A factor of 1 pools nothing, and
    what it scales to unit length has that already."""
    check_keys(config, POOLING_SETTINGS, file, "which sentence-transformers' HierarchicalTokenPooling does not take")
    if config.get("tasks", ["document"]) not in (["document"], "document", None):
        raise ModelRefused(f"{file}: tasks {config['tasks']}: only token vectors of documents are pooled")
    layers = reading.layers[TOKENS]
    if not layers or layers[-1].kind != "unit":
        raise ModelRefused(f"{reading.modules}: {module.kind} needs a Normalize of {TOKENS} right before it")
    factor = config.get("pool_factor", 1.0)
    if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 1 <= factor < inf:
        raise ModelRefused(f"{file}: pool_factor {factor!r} must be a number of at least 1")
    pooling = TokenPooling(
        pool_factor=float(factor),
        protected_tokens=whole(config.get("num_protected_tokens", 1), f"{file}: num_protected_tokens", least=0),
        normalize=checked(config.get("normalize_embeddings", False), bool, f"{file}: normalize_embeddings"),
    )
    reading.pools_tokens, reading.token_pooling = True, pooling if factor > 1 else None


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of modules: its reader, the feature that it needs, those that it writes, and whether its folder must have
    a config.json."""

    read: Callable[[ModuleReading, Module, dict[str, Any], Path], None]
    reads: str = ""
    writes: tuple[str, ...] = ()
    configured: bool = True


KINDS = {
    "Transformer": Kind(_transformer),
    "MLMTransformer": Kind(_transformer),  # an older name for the task fill-mask
    "StaticEmbedding": Kind(_static_embedding, writes=(SENTENCE,), configured=False),
    "Pooling": Kind(_pooling, reads=TOKENS, writes=(SENTENCE,)),
    "Dense": Kind(_dense),  # its config names what it reads and writes
    "LayerNorm": Kind(_layer_norm, reads=SENTENCE),
    "Normalize": Kind(_normalize, configured=False),
    "Dropout": Kind(_dropout, reads=SENTENCE, configured=False),
    "SpladePooling": Kind(_splade, writes=(SENTENCE,)),
    "LogitScore": Kind(_logit_score, reads=LOGITS, writes=(SCORES,)),
    "MultiVectorMask": Kind(_mask, configured=False),
    "HierarchicalTokenPooling": Kind(_token_pooling, reads=TOKENS),
}
FIRST = ("Transformer", "MLMTransformer", "StaticEmbedding")
"""Modules that texts go into."""
REFUSED = {
    "SparseStaticEmbedding": "only a Router may have it, for queries, with a SpladePooling for documents",
}
NAMES = (*KINDS, *REFUSED)
"""Classes that modules.json may name."""
