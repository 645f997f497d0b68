"""Reads repositories that sentence-transformers and PyLate write: modules.json and a folder for each module.

It reads the formats of versions 2 to 6: SentenceTransformer, SparseEncoder, CrossEncoder, MultiVectorEncoder and
PyLate's ColBERT. It reads JSON only.

A Router, served only as inference-free SPLADE, stands in modules.json as one module. Its file lists the modules of each
route: those of documents are read as any other list; for queries there must be a SparseStaticEmbedding, the weights
that a table, such as one of IDF, has for a text's tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_worker.repository import late_interaction, text_settings, transformers_format
from gpu_worker.repository.files import check_keys, checked, one_of, read_object, whole
from gpu_worker.repository.late_interaction import LateInteractionFormat
from gpu_worker.repository.module_reading import (
    FIRST,
    READERS,
    SCORES,
    SENTENCE,
    TOKENS,
    Module,
    ModuleReading,
    listed_modules,
    module_of,
)
from gpu_worker.repository.recipe import (
    ClassifierRecipe,
    DenseRecipe,
    LayerRecipe,
    MultiVectorRecipe,
    QueriesRecipe,
    Recipe,
)
from shared.errors import ModelRefused
from shared.vectors import Activation, InputType

DESCRIBED = "config_sentence_transformers.json"
COMPARED = ("dot", "euclidean", "manhattan")
"""Names of similarities other than the cosine in sentence-transformers."""
ROUTERS = ("Router", "Asym")
TABLE = "SparseStaticEmbedding"
SIDES = {"query": InputType.QUERY, "document": InputType.DOCUMENT}
"""The routes, by the names of the tasks of sentence-transformers' encode_query and encode_document."""
SERVED = (
    "a Router is served only as inference-free SPLADE, with a SparseStaticEmbedding for queries, and a Transformer "
    "(fill-mask) and a SpladePooling for documents"
)
USUAL_QUERY = 8192
"""Most tokens of a query where its files set no limit: it costs next to nothing."""


def read(path: Path, modules: Any, described: dict[str, Any]) -> Recipe:
    """Reads a recipe; `described` is config_sentence_transformers.json. Raises ModelRefused, naming file and key."""
    listed = list(listed_modules(path / "modules.json", modules, (*READERS, *ROUTERS)))
    queries, of_documents = _router(path, listed)
    return replace(_recipe(path, of_documents, described), queries=queries)


def _router(path: Path, modules: Sequence[Module]) -> tuple[QueriesRecipe | None, Sequence[Module]]:
    """Finds how queries are read, and the modules of documents; None and all modules where there is no Router.

    Raises ModelRefused, naming the file.
    """
    router = next((module for module in modules if module.kind in ROUTERS), None)
    if router is None:
        return None, modules
    if len(modules) > 1:
        raise ModelRefused(f"{path / 'modules.json'}: other modules beside a {router.kind}: {SERVED}")
    file = path / router.folder / "router_config.json"
    described = read_object(file)
    parts = ("types", "structure", "parameters")
    types, structure, parameters = (checked(described.get(key), dict, f"{file}: {key}") for key in parts)
    if set(structure) != set(SIDES):
        raise ModelRefused(f"{file}: structure has the routes {', '.join(sorted(structure)) or 'none'}: {SERVED}")
    if parameters.get("route_mappings"):
        raise ModelRefused(f"{file}: route_mappings is not supported: {SERVED}")
    query, document = (_route(file, router.folder, types, name, structure[name]) for name in SIDES)
    if [module.kind for module in query] != [TABLE] or document[-1].kind != "SpladePooling":
        kinds = [" and ".join(module.kind for module in route) for route in (query, document)]
        raise ModelRefused(f"{file}: queries go through {kinds[0]}, documents through {kinds[1]}: {SERVED}")
    return _queries(path, query[0].folder, _default(file, structure, parameters)), document


def _route(file: Path, folder: str, types: dict[str, Any], route: str, names: Any) -> list[Module]:
    if not isinstance(names, list) or not names or any(name not in types for name in names):
        raise ModelRefused(f"{file}: structure: the route {route!r} must be a list of names in types")
    return [module_of(file, types[name], (Path(folder) / name).as_posix(), READERS) for name in names]


def _default(file: Path, structure: dict[str, Any], parameters: dict[str, Any]) -> InputType:
    """What texts without a task are: as sentence-transformers has it, a route that is named, else the first one."""
    default = parameters.get("default_route")
    if default is None:
        return SIDES[next(iter(structure))] if parameters.get("allow_empty_key", True) else InputType.UNSPECIFIED
    return SIDES[one_of(default, SIDES, f"{file}: default_route")]


def _queries(path: Path, folder: str, default: InputType) -> QueriesRecipe:
    """Reads a SparseStaticEmbedding, whose weights lie in its folder."""
    file = path / folder / "config.json"
    why = "which is not supported: the weights must lie beside it, as save writes them"
    check_keys(read_object(file, missing={}), {"frozen"}, file, why)
    limit = text_settings.of_tokenizer(path / folder).max_tokens
    return QueriesRecipe(folder=folder, max_tokens=limit or USUAL_QUERY, default=default)


def _recipe(path: Path, modules: Sequence[Module], described: dict[str, Any]) -> Recipe:
    """Reads the recipe of these modules."""
    reading = ModuleReading(path, described)
    for module in modules:
        if reading.encoder is None and module.kind not in FIRST:
            raise ModelRefused(f"{reading.modules}: {module.kind} stands where the Transformer must, at the beginning")
        reading.pylate |= module.origin.startswith("pylate.")
        READERS[module.kind](reading, module.folder)
    assert reading.encoder is not None  # there is a module, and the first one is read
    texts = reading.texts
    return Recipe(
        encoder=reading.encoder,
        weights_of=reading.weights_of,
        static=reading.static,
        max_tokens=texts.max_tokens,
        truncation_side=texts.truncation_side,
        lowercase=texts.lowercase,
        config=texts.config,
        notice=_notice(described),
        **_heads(reading),
    )


def _notice(described: dict[str, Any]) -> str:
    compared = described.get("similarity_fn_name")
    if compared not in COMPARED:
        return ""
    return f"{DESCRIBED} compares by {compared}; scores of dense vectors are cosines here" + (
        ", products with normalize false" if compared == "dot" else ""
    )


def _heads(reading: ModuleReading) -> dict[str, Any]:
    """Makes heads from the modules. Raises ModelRefused."""
    if reading.static and (reading.late or reading.layers[SCORES]):
        raise ModelRefused(f"{reading.modules}: a static embedding makes vectors of texts alone")
    path = reading.path / (reading.encoder or "")
    config = {} if reading.static else read_object(path / "config.json")
    if reading.late and reading.weights_of == "encoder":
        return _late(reading, reading.late)
    for key in (key for key, value in reading.texts.late.items() if value is not None):
        raise ModelRefused(f"{reading.texts.named}: {key} is for models of late interaction, which this is not")
    _check_ends(reading)
    if reading.yes_no is not None:
        recipe = transformers_format.yes_no(config, reading.texts, reading.yes_no)
        return {"classifier": replace(recipe, activation=_activation(reading, recipe.activation))}
    if reading.weights_of == "sequence-classification":
        recipe = transformers_format.classifier(path, config, "sequence", reading.texts)
        return {"classifier": replace(recipe, activation=_activation(reading, recipe.activation))}
    if reading.layers[SCORES]:
        return {"classifier": _pooled_classifier(reading)}
    if reading.splade is not None:
        return {"sparse": reading.splade}
    if reading.weights_of != "encoder":
        raise ModelRefused(f"{reading.modules}: no module makes vectors or scores of the model's logits")
    if reading.pooling is None:
        raise ModelRefused(f"{reading.modules}: there is no Pooling, and vectors of texts are wanted")
    dense = replace(reading.pooling, allowed_dimensions=transformers_format.matryoshka(path, config))
    heads = {"dense": _with_layers(dense, [*reading.layers[SENTENCE], *_cut(reading)])}
    return heads if reading.static else {**heads, "multi_vector": MultiVectorRecipe()}


def _check_ends(reading: ModuleReading) -> None:
    """Raises ModelRefused for modules whose output no served head would use."""
    has_scores = reading.yes_no is not None or reading.weights_of == "sequence-classification"
    if has_scores and reading.layers[SCORES]:
        raise ModelRefused(f"{reading.modules}: layers over the scores of the model's own head are not supported")
    if reading.splade is not None and (reading.layers[SENTENCE] or reading.pooling):
        raise ModelRefused(f"{reading.modules}: no other module may work on what SpladePooling makes")
    if reading.splade is not None and reading.described.get("max_active_dims") is not None:
        raise ModelRefused(
            f"{reading.path / DESCRIBED}: max_active_dims is not supported: take it away, and ask with sparse_top_k"
        )
    if reading.layers[TOKENS]:
        raise ModelRefused(f"{reading.modules}: layers over token_embeddings need a MultiVectorEncoder")
    if reading.masks:
        raise ModelRefused(f"{reading.modules}: a MultiVectorMask needs a MultiVectorEncoder")


def _cut(reading: ModuleReading) -> list[LayerRecipe]:
    """The layer for truncate_dim: it cuts vectors after all modules, without scaling them to unit length again."""
    said = reading.described.get("truncate_dim")
    if said is None:
        return []
    return [LayerRecipe(kind="cut", outputs=whole(said, f"{reading.path / DESCRIBED}: truncate_dim"))]


def _late(reading: ModuleReading, file_format: LateInteractionFormat) -> dict[str, Any]:
    """Makes the heads of late interaction. A last Normalize becomes `normalize`; PyLate's models have it implicitly."""
    modules, layers = reading.modules, list(reading.layers[TOKENS])
    if any(layer.kind != "unit" for layer in reading.layers[SENTENCE]):
        raise ModelRefused(f"{modules}: layers over sentence_embedding make no token vectors")
    if file_format is LateInteractionFormat.OLD_PYLATE and not layers:
        raise ModelRefused(f"{modules}: there is no Dense, and a projection of token vectors is wanted")
    normalize = file_format is not LateInteractionFormat.NATIVE
    if layers and layers[-1].kind == "unit":
        normalize = True
        layers.pop()
    mean = reading.described.get("similarity_fn_name") == "meanmaxsim"
    file = reading.path / DESCRIBED
    return {
        "multi_vector": MultiVectorRecipe(layers=tuple(layers), mean=mean, normalize=normalize),
        "late_interaction": late_interaction.of_modules(
            file_format, file, reading.described, reading.texts, reading.masks
        ),
    }


def _with_layers(dense: DenseRecipe, layers: list[LayerRecipe]) -> DenseRecipe:
    """Puts layers behind a dense head. A last Normalize becomes `normalize`: requests may switch it off."""
    normalize = bool(layers) and layers[-1].kind == "unit"
    return replace(dense, layers=tuple(layers[:-1] if normalize else layers), normalize=normalize)


def _pooled_classifier(reading: ModuleReading) -> ClassifierRecipe:
    """Makes a CrossEncoder whose scores come from pooled rows through Dense layers."""
    assert reading.pooling is not None  # scores are made of what it pools
    layers = reading.layers[SENTENCE] + reading.layers[SCORES]
    width = layers[-1].outputs
    activation = _activation(reading, Activation.SIGMOID if width == 1 else Activation.IDENTITY)
    return ClassifierRecipe(
        kind="sequence",
        activation=activation,
        labels=tuple(f"LABEL_{index}" for index in range(width)),
        pooled=replace(reading.pooling, layers=tuple(layers)),
    )


def _activation(reading: ModuleReading, fallback: Activation) -> Activation:
    """The activation that a CrossEncoder's files name, else `fallback`."""
    named = reading.described.get("activation_fn")
    if named:
        return transformers_format.activation_of(reading.path / DESCRIBED, str(named))
    return fallback
