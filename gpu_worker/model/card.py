"""The card of a loaded model, from its recipe, its abilities, and what was decided at load."""

from gpu_worker.model.abilities import Abilities
from gpu_worker.model.loading import Model
from shared.card import ModelCard
from shared.vectors import Activation, OutputKind


def card_of(model: Model) -> ModelCard:
    """Makes the card. A field is empty, 0 or its default where the model has no such head or task."""
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
        pooling="+".join(dense.poolings) if dense else "",
        dimensions=abilities.widths[OutputKind.DENSE],
        allowed_dimensions=dense.allowed_dimensions if dense else (),
        normalizes=bool(dense and dense.normalize),
        include_prompt=dense.include_prompt if dense else True,
        multi_vector_dimensions=abilities.widths[OutputKind.MULTI_VECTOR],
        multi_vector_head=abilities.own_multi_vectors,
        averages_late_interaction=bool(recipe.multi_vector and recipe.multi_vector.mean),
        late_interaction=model.late_interaction,
        normalizes_multi_vectors=bool(recipe.multi_vector and recipe.multi_vector.normalize),
        sparse_head=recipe.sparse.kind if recipe.sparse else "",
        labels=abilities.labels,
        activation=classifier.activation if classifier else Activation.NONE,
        pair_template=classifier.template if classifier else "",
        instructed_pair_template=classifier.instructed_template if classifier else "",
        prompts=recipe.prompts,
        default_prompt_name=recipe.default_prompt_name,
        max_tokens=model.max_tokens,
        vocabulary_size=model.vocabulary_size,
        dtype=model.placement.dtype_name,
        device=str(model.placement.device),
        attention=model.encoder.description,
        linear=model.linear,
        formats=model.formats,
        weight_bytes=model.weight_bytes,
        fingerprint=model.fingerprint,
        special_tokens=model.tokenizer.special_tokens,
        notice=model.notice,
        max_sim=model.maxsim.name,
        truncation_side=model.tokenizer.truncation_side,
    )
