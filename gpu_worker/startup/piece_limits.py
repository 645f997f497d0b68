"""Decides how long texts are cut and how much memory their keys and values may take. Knows no settings and no logs."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.model.card import CACHE_SETTING, card_of
from gpu_worker.model.loading import Model
from shared.card import ModelCard
from shared.errors import ModelRefused
from shared.load import TURNS_PER_STEP

MEBIBYTE = 1 << 20
PIECES_PER_STEP = TURNS_PER_STEP
"""Pieces of the default length in a full step: a piece is a turn on a processor. Pieces that come into one step are
joined, so a step that is short, since it is bounded in time, costs speed, and not the length of a piece."""
LEAST_CACHE = 2048 * MEBIBYTE
"""Bytes that a processor keeps for keys and values at least; they are taken only as far as texts need them."""
DEVICE_SHARE, LARGEST_SHARE = 0.25, 0.5
"""Shares of what the weights leave of the memory: on an accelerator by default, and at most so that one text of the
largest length fits."""
ROUNDED_TOKENS = 1024
"""The default is a multiple of so many tokens where it limits texts: the limit is part of the fingerprint, and two
machines of one kind differ by some pages."""

CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files in which Linux tells a container its limit of memory, by version 2 and 1 of cgroups."""


def cache_bytes(model: Model, megabytes: int) -> int:
    """Decides the most bytes for keys and values: the user's number, 0 for the default; 0 for a model whose texts are
    not cut.

    Raises ModelRefused where the user's number is more memory than there is.
    """
    if model.whole_texts:
        return 0
    memory = model.placement.memory
    available = max(0, (memory["limit"] if memory else machine_memory()) - model.weight_bytes)
    if megabytes * MEBIBYTE > available:
        raise ModelRefused(f"{CACHE_SETTING} = {megabytes}: there are {available // MEBIBYTE} MiB of memory for it")
    if megabytes:
        return megabytes * MEBIBYTE
    least = int(DEVICE_SHARE * available) if memory else LEAST_CACHE
    token_bytes = model.token_bytes
    wanted, most = max(least, model.longest * token_bytes + model.state_bytes), int(LARGEST_SHARE * available)
    if wanted <= most:
        return wanted
    rounded = ROUNDED_TOKENS * token_bytes
    return most // rounded * rounded or most


def piece_limits(model: Model, step_tokens: int, chunk_tokens: int | None, kept_bytes: int) -> PieceLimits:
    """Decides the limits in steps of `step_tokens`. `chunk_tokens`: the user's number, None for the default, 0 for
    whole texts. `kept_bytes`: see `cache_bytes`."""
    accelerated = model.placement.device_memory is not None
    # An accelerator's short steps are for overlap; shorter pieces would cost it speed, since no graph has them and each
    # later one has launches of its own.
    largest = max(step_tokens, model.placement.step_tokens) if accelerated else step_tokens
    longest = max(1, min(largest // PIECES_PER_STEP, step_tokens)) if chunk_tokens is None else chunk_tokens
    limits = replace(WHOLE, shares=not model.unshared)
    if limits.shares:
        limits = replace(limits, together=step_tokens // PIECES_PER_STEP)
    if not kept_bytes or not longest:
        return limits
    limits = replace(limits, token_bytes=model.token_bytes, state_bytes=model.state_bytes)
    return replace(limits, longest=longest, cache_bytes=kept_bytes)


def card_with_limits(model: Model, limits: PieceLimits) -> ModelCard:
    """Makes the model's card, with what the limits of pieces mean for its texts."""
    if not limits.longest:
        return card_of(model)
    return card_of(model, chunk_tokens=limits.longest, cache_tokens=int(limits.cache_tokens))


def adapters_by_fingerprint(model: Model, limits: PieceLimits) -> dict[str, Model]:
    """Lists the models of adapters over a model, by the fingerprints of their cards."""
    return {card_with_limits(adapter, limits).fingerprint: adapter for adapter in model.adapters}


def summary(model: Model, card: ModelCard) -> str:
    """Tells people in one line how long texts are computed."""
    if not card.chunk_tokens:
        return f"each in one step: {card.whole_texts}"
    megabytes = (card.cache_tokens * model.token_bytes + model.state_bytes) / MEBIBYTE
    return (
        f"in pieces of {card.chunk_tokens} tokens; what is kept of a text of {card.cache_tokens} tokens fits into "
        f"{megabytes:.0f} MiB"
    )


def machine_memory(limits: Iterable[Path] = CONTAINER_LIMITS) -> int:
    """Bytes of memory that this machine has, or its container if that may have less. `limits`: files with the
    container's limit as a number of bytes; files that are missing or hold no number are passed over."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        try:
            sizes.append(int(path.read_text()))
        except (OSError, ValueError):
            continue
    return min(sizes)
