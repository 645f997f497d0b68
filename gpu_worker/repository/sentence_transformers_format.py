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

from gpu_worker.repository import late_interaction, module_reading, text_settings, transformers_format
from gpu_worker.repository.files import check_keys, checked, one_of, read_object, whole
from gpu_worker.repository.late_interaction import LateInteractionFormat
from gpu_worker.repository.module_reading import NAMES, Module, ModuleReading, listed_modules, module_of
from gpu_worker.repository.recipe import (
    ClassifierRecipe,
    LayerRecipe,
    MessageRecipe,
    MultiVectorRecipe,
    QueriesRecipe,
    Recipe,
)
from gpu_worker.repository.text_settings import SCORES, SENTENCE, TOKENS
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
    "(fill-mask) and a SpladePooling for documents; save the modules of other routes as models of their own"
)
USUAL_QUERY = 8192
"""Most tokens of a query where its files set no limit: it costs next to nothing."""


def read(path: Path, modules: Any, described: dict[str, Any]) -> Recipe:
    """Reads a recipe; `described` is config_sentence_transformers.json. Raises ModelRefused, naming file and key."""
    listed = listed_modules(path / "modules.json", modules, (*NAMES, *ROUTERS))
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
        raise ModelRefused(f"{path / 'modules.json'}: other modules than its {router.kind}: {SERVED}")
    file = path / router.folder / "router_config.json"
    if not file.is_file():  # an Asym of earlier versions
        raise ModelRefused(f"{path / 'modules.json'}: {router.kind} without {file.name}: {SERVED}")
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
    listed = isinstance(names, list) and all(isinstance(name, str) and name in types for name in names)
    if not names or not listed:
        raise ModelRefused(f"{file}: structure: the route {route!r} must be a list of names in types")
    return [
        module_of(file, checked(types[name], str, f"{file}: {name}"), (Path(folder) / name).as_posix(), NAMES)
        for name in names
    ]


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
    limit = text_settings.tokenizer_limit(path / folder)
    return QueriesRecipe(folder=folder, max_tokens=limit or USUAL_QUERY, default=default)


def _recipe(path: Path, modules: Sequence[Module], described: dict[str, Any]) -> Recipe:
    """Reads the recipe of these modules."""
    reading = module_reading.read(path, modules, described)
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
        message=_message(reading),
        **_heads(reading, described),
    )


def _message(reading: ModuleReading) -> MessageRecipe | None:
    """How texts of a model of vectors become chat messages. Raises ModelRefused for messages of pairs and of PyLate.

    As in sentence-transformers, pooling does not leave out the prompt of a message.
    """
    texts = reading.texts
    if not texts.chat or reading.weights_of in ("causal-lm", "sequence-classification"):
        return None
    if reading.late not in (None, LateInteractionFormat.NATIVE) or reading.layers[SCORES]:
        what = "PyLate's files" if reading.late else "a classifier over pooled rows"
        raise ModelRefused(f"{texts.named}: modality_config: message with {what} is not supported")
    if reading.pooling is not None:
        reading.pooling = replace(reading.pooling, include_prompt=True)
    return MessageRecipe(structured=texts.structured, options=texts.chat_options, source=texts.named)


def _notice(described: dict[str, Any]) -> str:
    compared = described.get("similarity_fn_name")
    if compared not in COMPARED:
        return ""
    return f"{DESCRIBED} compares by {compared}; scores of dense vectors are cosines here" + (
        ", products with normalize false" if compared == "dot" else ""
    )


def _heads(reading: ModuleReading, described: dict[str, Any]) -> dict[str, Any]:
    """Makes heads from the modules. Raises ModelRefused."""
    if reading.static and (reading.late or reading.layers[SCORES]):
        raise ModelRefused(f"{reading.modules}: a static embedding makes vectors of texts alone")
    if reading.late and reading.weights_of == "encoder":
        return _late(reading, reading.late, described)
    _check_used(reading, described)
    path = reading.path / reading.encoder
    config = {} if reading.static else read_object(path / "config.json")
    classifier = _classifier(reading, path, config)
    if classifier is not None:
        named = described.get("activation_fn")  # a CrossEncoder's
        if named:
            activation = transformers_format.activation_of(reading.path / DESCRIBED, str(named))
            classifier = replace(classifier, activation=activation)
        return {"classifier": classifier}
    if reading.splade is not None:
        return {"sparse": reading.splade}
    if reading.weights_of != "encoder":
        raise ModelRefused(f"{reading.modules}: no module makes vectors or scores of the model's logits")
    if reading.pooling is None:
        raise ModelRefused(f"{reading.modules}: there is no Pooling, and vectors of texts are wanted")
    behind = list(reading.layers[SENTENCE])
    if described.get("truncate_dim") is not None:  # it cuts after all modules, without scaling to unit length again
        cut = whole(described["truncate_dim"], f"{reading.path / DESCRIBED}: truncate_dim")
        behind.append(LayerRecipe(kind="cut", outputs=cut))
    layers, normalize = _split_normalize(behind)
    dimensions = transformers_format.matryoshka(path, config)
    dense = replace(reading.pooling, layers=layers, normalize=normalize, allowed_dimensions=dimensions)
    return {"dense": dense} if reading.static else {"dense": dense, "multi_vector": MultiVectorRecipe()}


def _split_normalize(layers: Sequence[LayerRecipe]) -> tuple[tuple[LayerRecipe, ...], bool]:
    """Takes a last Normalize away from layers: requests may switch it off. Returns whether there was one."""
    normalize = bool(layers) and layers[-1].kind == "unit"
    return tuple(layers[:-1] if normalize else layers), normalize


def _check_used(reading: ModuleReading, described: dict[str, Any]) -> None:
    """Raises ModelRefused for settings and modules that no served head would use."""
    for key in (key for key, value in reading.texts.late.items() if value is not None):
        raise ModelRefused(f"{reading.texts.named}: {key} is for models of late interaction, which this is not")
    if reading.splade and described.get("max_active_dims") is not None:
        raise ModelRefused(
            f"{reading.path / DESCRIBED}: max_active_dims is not supported: take it away, and ask with sparse_top_k"
        )
    layers, own_scores = reading.layers, reading.yes_no is not None or reading.weights_of == "sequence-classification"
    for unused, why in (
        (own_scores and layers[SCORES], "layers over the scores of the model's own head are not supported"),
        (
            reading.splade and (layers[SENTENCE] or reading.pooling),
            "only a Transformer may stand beside a SpladePooling",
        ),
        (layers[TOKENS], "layers over token_embeddings need a MultiVectorEncoder"),
        (reading.masks, "a MultiVectorMask needs a MultiVectorEncoder"),
        (reading.pools_tokens, "a HierarchicalTokenPooling needs a MultiVectorEncoder"),
    ):
        if unused:
            raise ModelRefused(f"{reading.modules}: {why}")


def _late(reading: ModuleReading, file_format: LateInteractionFormat, described: dict[str, Any]) -> dict[str, Any]:
    """Makes the heads of late interaction. PyLate's models scale token vectors to unit length without a Normalize."""
    if any(layer.kind != "unit" for layer in reading.layers[SENTENCE]):
        raise ModelRefused(f"{reading.modules}: layers over sentence_embedding make no token vectors")
    if file_format is LateInteractionFormat.OLD_PYLATE and not reading.layers[TOKENS]:
        raise ModelRefused(f"{reading.modules}: there is no Dense, and a projection of token vectors is wanted")
    layers, normalize = _split_normalize(reading.layers[TOKENS])
    return {
        "multi_vector": MultiVectorRecipe(
            layers=layers,
            mean=described.get("similarity_fn_name") == late_interaction.MEAN,
            normalize=normalize or file_format is not LateInteractionFormat.NATIVE,
            pooling=reading.token_pooling,
        ),
        "late_interaction": late_interaction.of_modules(
            file_format, reading.path / DESCRIBED, described, reading.texts, reading.masks
        ),
    }


def _classifier(reading: ModuleReading, path: Path, config: dict[str, Any]) -> ClassifierRecipe | None:
    """Makes the head for labels or scores; None for a model of vectors."""
    texts = reading.texts
    if reading.yes_no is not None:
        recipe = transformers_format.yes_no(config, reading.yes_no)
        return replace(recipe, structured=texts.structured, chat_options=texts.chat_options)
    if reading.weights_of == "sequence-classification":
        recipe = replace(transformers_format.classifier(path, config, "sequence"), needs_template=texts.chat)
        return replace(recipe, structured=texts.structured, chat_options=texts.chat_options)
    if not reading.layers[SCORES]:
        return None
    assert reading.pooling is not None  # scores are made of what it pools
    layers = (*reading.layers[SENTENCE], *reading.layers[SCORES])
    width = layers[-1].outputs
    return ClassifierRecipe(
        kind="sequence",
        activation=Activation.SIGMOID if width == 1 else Activation.IDENTITY,
        labels=tuple(f"LABEL_{index}" for index in range(width)),
        pooled=replace(reading.pooling, layers=layers),
    )
