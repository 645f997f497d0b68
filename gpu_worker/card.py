"""A loaded model -> the card that the outside sees."""

from gpu_worker.models.loading import Model
from shared.card import ModelCard
from shared.vectors import OutputKind, ScoringMethod


def card_of(model: Model) -> ModelCard:
    """Tells everything that a caller may need to know."""
    recipe = model.recipe
    return ModelCard(
        id=model.name,
        family=model.family,
        outputs=(OutputKind.DENSE, OutputKind.MULTI_VECTOR),
        methods=(ScoringMethod.DENSE, ScoringMethod.LATE_INTERACTION),
        default_method=ScoringMethod.DENSE,
        pooling=recipe.pooling,
        dimensions=model.hidden_size,
        allowed_dimensions=recipe.allowed_dimensions,
        multi_vector_dimensions=model.hidden_size,
        normalizes=recipe.normalize,
        prompts=recipe.prompts,
        default_prompt_name=recipe.default_prompt_name,
        include_prompt=recipe.include_prompt,
        max_tokens=model.max_tokens,
        vocabulary_size=model.vocabulary_size,
        dtype=model.placement.dtype_name,
        device=str(model.placement.device),
        attention=model.trunk.attention.name,
        linear=model.linear,
        fingerprint=model.fingerprint,
        special_tokens=model.tokenizer.special_tokens,
        notice=recipe.notice,
    )
