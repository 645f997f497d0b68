"""The card of a loaded model, from its recipe, its abilities, and what was decided at load."""

import hashlib
from dataclasses import replace
from typing import TypeVar

import torch

from gpu_worker.kernels.cpu import library
from gpu_worker.model.model import Abilities, Model
from gpu_worker.model.tune.linear import INT8
from gpu_worker.repository.static_format import Queries
from shared.card import LateInteraction, Listwise, ModelCard, QueryRoute
from shared.vectors import Activation, OutputKind

CACHE_SETTING = "--cache-megabytes"
Sides = TypeVar("Sides", LateInteraction, Listwise)
"""What has limits of its own for queries and for documents."""


def card_of(model: Model, *, chunk_tokens: int = 0, cache_tokens: int = 0) -> ModelCard:
    """Makes the card. A field is empty, 0 or its default where the model has no such head or task.

    `chunk_tokens`: most tokens of a piece, 0 where no text is cut. `cache_tokens`: tokens of
    the longest text that fits into what the device keeps. A longer one cannot be computed, so no limit on the card lies
    above that.
    """
    card = _card_of_whole_texts(model)
    if not chunk_tokens:
        return card
    card = replace(card, chunk_tokens=chunk_tokens, cache_tokens=cache_tokens, whole_texts="")
    longest = max(chunk_tokens, cache_tokens)
    return card if model.longest <= longest else _limited(card, longest)


def _limited(card: ModelCard, longest: int) -> ModelCard:
    """Makes the card with limits of at most `longest` tokens, and with a fingerprint of its own: where a text is cut
    off changes its rows."""
    warning = f"{CACHE_SETTING} limits texts to {longest} tokens"
    return replace(
        card,
        max_tokens=min(card.max_tokens, longest),
        late_interaction=_limited_lengths(card.late_interaction, longest) if card.late_interaction else None,
        listwise=_limited_lengths(card.listwise, longest) if card.listwise else None,
        limited_by=CACHE_SETTING,
        notice="; ".join(filter(None, (card.notice, warning))),
        fingerprint=hashlib.sha256(f"{card.fingerprint} {longest}".encode()).hexdigest(),
    )


def _limited_lengths(sides: Sides, longest: int) -> Sides:
    query_length, document_length = min(sides.query_length, longest), min(sides.document_length, longest)
    return replace(sides, query_length=query_length, document_length=document_length)


def _card_of_whole_texts(model: Model) -> ModelCard:
    recipe, abilities = model.recipe, Abilities(model)
    dense, classifier = recipe.dense, recipe.classifier
    return ModelCard(
        id=model.names[0],
        aliases=model.names[1:],
        family=model.family,
        tasks=abilities.tasks,
        outputs=abilities.outputs,
        methods=abilities.methods,
        default_method=abilities.default_method,
        pooling="+".join(dense.poolings) if dense and not model.listwise else "",
        dimensions=0 if model.listwise else abilities.widths[OutputKind.DENSE],
        allowed_dimensions=dense.allowed_dimensions if dense else (),
        normalizes=bool(dense and dense.normalize),
        include_prompt=dense.include_prompt if dense else True,
        multi_vector_dimensions=abilities.widths[OutputKind.MULTI_VECTOR],
        multi_vector_head=abilities.own_multi_vectors,
        averages_late_interaction=bool(recipe.multi_vector and recipe.multi_vector.mean),
        late_interaction=model.late_interaction,
        normalizes_multi_vectors=bool(recipe.multi_vector and recipe.multi_vector.normalize),
        token_pooling=recipe.multi_vector.pooling if recipe.multi_vector else None,
        sparse_head=recipe.sparse.kind if recipe.sparse else "",
        labels=abilities.labels,
        activation=classifier.activation if classifier else Activation.NONE,
        pair_template=classifier.template if classifier else "",
        instructed_pair_template=classifier.instructed_template if classifier else "",
        message_templates=recipe.message.templates if recipe.message else {},
        prompted_message_templates=recipe.message.prompted_templates if recipe.message else {},
        prompts=recipe.prompts,
        default_prompt_name=recipe.default_prompt_name,
        max_tokens=model.max_tokens,
        vocabulary_size=model.vocabulary_size,
        dtype=model.placement.dtype_name,
        device=str(model.placement.device),
        attention=model.encoder.description,
        linear=model.linear,
        formats=_faster_formats(model),
        weight_bytes=model.weight_bytes,
        fingerprint=model.fingerprint,
        special_tokens=model.tokenizer.special_tokens,
        special_ids=model.tokenizer.special_ids,
        notice=model.notice,
        max_sim=model.maxsim.name,
        truncation_side=model.tokenizer.truncation_side,
        whole_texts=model.whole_texts,
        query_route=_query_route(model.queries) if model.queries else None,
        pools_spans=abilities.pools_spans,
        bitwise_invariant=not model.other_bits,
        task_models=model.task_models,
        listwise=_limited_lengths(model.listwise, model.max_tokens) if model.listwise else None,
    )


def _faster_formats(model: Model) -> str:
    """A line on formats that the processor's kernels have beside float32; empty where one is in use."""
    placement, exact = model.placement, not model.recipe.static and not model.linear.startswith(INT8)
    if placement.device.type != "cpu" or placement.dtype != torch.float32 or not exact:
        return ""
    formats = library.load().formats
    settings = ["--dtype bfloat16"] if torch.bfloat16 in formats else []
    settings += ["--dtype int8"] if formats and not (model.adapters or model.adapter) else []
    return f"may be faster on this processor, and rounded: {', '.join(settings)}" if settings else ""


def _query_route(queries: Queries) -> QueryRoute:
    return QueryRoute(
        default_input_type=queries.default,
        max_tokens=queries.max_tokens,
        vocabulary_size=queries.token_ids,
        truncation_side=queries.tokenizer.truncation_side,
        special_ids=queries.tokenizer.special_ids,
        table_digest=hashlib.sha256(queries.sent).hexdigest() if queries.sent else "",
    )
