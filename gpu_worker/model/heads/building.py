"""Builds heads, with their weights, from their recipes. The caller says how tensors are read."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gpu_worker.device.placement import Placement
from gpu_worker.model.heads.heads import (
    CutRows,
    Dense,
    DenseHead,
    HeadClassifier,
    Heads,
    LexicalHead,
    MultiVectorHead,
    PooledClassifier,
    RescaledClassifier,
    SequenceClassifier,
    SpladeHead,
    TokenClassifier,
    TransformersHead,
    Unit,
    YesNoClassifier,
)
from gpu_worker.repository.recipe import ClassifierRecipe, DenseRecipe, LayerRecipe, Recipe
from shared.errors import ModelRefused

ReadLayer = Callable[[LayerRecipe], dict[str, Tensor]]
"""Reads the tensors of a layer by role: weight [out, in], bias [out], residual [out, in]."""


class HeadBuilder:
    """Builds the heads of one model. Heads of transformers' classes take the model apart, so they are built last."""

    def __init__(self, recipe: Recipe, model: Any, placement: Placement, read: ReadLayer, width: int) -> None:
        """Builds nothing yet. `width` is the size of a hidden state."""
        self._recipe, self._model, self._placement, self._read = recipe, model, placement, read
        self._base, self._width = getattr(model, "base_model", model), width

    def build(self) -> Heads:
        """Builds all heads that the recipe names. Raises ModelRefused.

        The gate of heads chooses later which row a ForSequenceClassification reads.
        """
        recipe = self._recipe
        dense = self._dense(recipe.dense) if recipe.dense else None
        multi_vector = None
        if recipe.multi_vector:
            layers, width = self._chain(recipe.multi_vector.layers, self._width, self._placement.dtype)
            multi_vector = MultiVectorHead(
                layers, width, skip_first=recipe.multi_vector.skip_first, mean=recipe.multi_vector.mean
            )
        classifier = self._classifier()
        heads = Heads(
            dense=dense,
            multi_vector=multi_vector,
            sparse=self._sparse(),
            classifier=None if isinstance(classifier, TokenClassifier) else classifier,
            token_classifier=classifier if isinstance(classifier, TokenClassifier) else None,
        )
        leave_out_pooler(self._base)  # a head that wants the pooler has it
        return heads

    def _dense(self, recipe: DenseRecipe) -> DenseHead:
        layers, width = self._chain(recipe.layers, self._width * len(recipe.poolings), torch.float32)
        return DenseHead(recipe.poolings, layers, width)

    def _sparse(self) -> SpladeHead | LexicalHead | None:
        sparse = self._recipe.sparse
        if sparse is None:
            return None
        if sparse.layer is not None:
            layers, width = self._chain((sparse.layer,), self._width, self._placement.dtype)
            if width != 1:
                raise ModelRefused(f"{sparse.layer.weights} gives {width} numbers a token, lexical weights are one")
            return LexicalHead(layers)
        vocabulary = int(self._model.config.vocab_size)
        return SpladeHead(TransformersHead(self._model), vocabulary, strategy=sparse.strategy, logs=sparse.logs)

    def _classifier(self) -> SequenceClassifier | TokenClassifier | None:
        classifier = self._recipe.classifier
        if classifier is None:
            return None
        if classifier.pooled:
            return _rescaled(PooledClassifier(self._dense(classifier.pooled)), classifier)
        if classifier.yes_no:
            ids = [identity for identity in classifier.yes_no if identity is not None]
            softcap = getattr(self._model.config.get_text_config(), "final_logit_softcapping", None)
            rows = self._model.get_output_embeddings().weight.detach()[ids].clone()
            return _rescaled(YesNoClassifier(rows, softcap), classifier)
        if classifier.layers:
            return TokenClassifier(self._chain(classifier.layers, self._width, self._placement.dtype)[0])
        head = TransformersHead(self._model)
        return (
            TokenClassifier(head)
            if classifier.kind == "tokens"
            else HeadClassifier(head, "cls", self._model.config.get_text_config().pad_token_id)
        )

    def _chain(self, layers: Sequence[LayerRecipe], width: int, dtype: torch.dtype) -> tuple[nn.Sequential, int]:
        """Layers that run one after the other, and the width of the last one's rows."""
        modules: list[nn.Module] = []
        for layer in layers:
            module, width = self._layer(layer, width)
            modules.append(module.to(self._placement.device, dtype))
        return nn.Sequential(*modules).eval(), width

    def _layer(self, layer: LayerRecipe, width: int) -> tuple[nn.Module, int]:
        """A layer for rows of this width, and the width of the rows that it gives."""
        if layer.kind == "unit":
            return Unit(), width
        if layer.kind == "cut":
            cut_width = min(layer.outputs, width)
            return CutRows(cut_width), cut_width
        tensors = self._read(layer)
        shape = tensors["weight"].shape
        if layer.kind == "layer-norm":
            if shape != (width,) or tensors["bias"].shape != (width,):
                raise ModelRefused(f"{layer.weights}: norm.weight has the shape {list(shape)}, wanted is [{width}]")
            norm = nn.LayerNorm(width)
            norm.load_state_dict(tensors)
            return norm, width
        if layer.inputs not in (0, width):
            raise ModelRefused(
                f"{_config_file(layer)}: in_features is {layer.inputs}, and rows of {width} numbers come in"
            )
        needed_shape = [layer.outputs or shape[0], width]
        if list(shape) != needed_shape:
            raise ModelRefused(
                f"{layer.weights}: {layer.keys['weight']} has the shape {list(shape)}, its place wants {needed_shape}"
            )
        residual = None
        if layer.residual:
            residual = _linear(tensors["residual"], None) if "residual" in tensors else nn.Identity()
        linear = _linear(tensors["weight"], tensors.get("bias"))
        return Dense(linear, _activation(layer), residual), int(shape[0])


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return linear


def _config_file(layer: LayerRecipe) -> str:
    """Finds the path of the file that describes a layer."""
    return f"{layer.weights.rpartition('/')[0]}/config.json"


def _rescaled(classifier: SequenceClassifier, recipe: ClassifierRecipe) -> SequenceClassifier:
    mean, sigma = recipe.logit_mean, recipe.logit_sigma
    return classifier if (mean, sigma) == (0.0, 1.0) else RescaledClassifier(classifier, mean, sigma)


def _activation(layer: LayerRecipe) -> nn.Module:
    """Reads the activation of a layer: a class of torch.nn, named with dots, that needs no arguments. Raises
    ModelRefused."""
    name, setting = layer.activation, f"{_config_file(layer)}: activation_function {layer.activation}"
    activation_class = getattr(nn, name.rpartition(".")[2], None)
    if not (inspect.isclass(activation_class) and issubclass(activation_class, nn.Module)):
        raise ModelRefused(f"{setting} is no class of torch.nn")
    try:
        activation = activation_class()
    except TypeError:
        raise ModelRefused(f"{setting} wants arguments, which no file gives") from None
    if any(True for _ in activation.parameters()):
        raise ModelRefused(f"{setting} has weights of its own, which are not supported")
    return activation


class UnusedPooler(nn.Module):
    """Takes the place of a pooler, and returns the hidden states that it is called with."""

    def forward(self, hidden: Tensor, *_: object, **__: object) -> Tensor:
        """Returns its input, whatever its shape."""
        return hidden


def leave_out_pooler(base: Any) -> None:
    """Has an encoder of transformers run without its pooler (BERT and its kin: a product and a tanh of the step's first
    token), in place. Heads that were built keep theirs."""
    pooler = getattr(base, "pooler", None)
    if isinstance(pooler, nn.Linear) or type(pooler).__name__.endswith("Pooler"):
        base.pooler = UnusedPooler()
