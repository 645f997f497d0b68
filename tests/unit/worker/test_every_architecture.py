"""Every text architecture of the installed transformers is served as sentence-transformers would, or refused.

Some families are tried at every run, all of them by `make test-slow`.
"""

from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING

from gpu_worker.model.source import quiet
from harness import supported_models as census
from harness.random_models import miniature
from support.architectures import (
    CUT,
    EQUAL,
    LISTED,
    MIXED,
    NOT_MADE,
    PAGE,
    TOLD,
    compare,
    compare_in_pieces,
    write,
)
from support.tiny import random_ids

OFTEN = ("bloom", "deberta", "gpt_oss", "jamba", "longformer", "roformer", "xlnet")
"""Of those that were once refused: positions by attention, by content, by rotation and by memory; experts, state."""


@pytest.mark.parametrize("kind", OFTEN)
def test_a_family_that_was_refused_is_served_right(kind: str, tmp_path: Path) -> None:
    """By equal length, since none of them runs packed."""
    assert TOLD[kind] == census.EQUAL_LENGTH
    write(tmp_path, kind)
    compare(kind, tmp_path, MIXED[:14] + EQUAL[-6:])


@pytest.mark.slow
def test_the_page_lists_every_architecture() -> None:
    """Once each: the sweep goes by the page, since looking through all of transformers takes seconds."""
    assert sorted(miniature.model_types()) == LISTED


@pytest.mark.slow
@pytest.mark.parametrize("kind", LISTED)
def test_no_architecture_is_served_wrong(kind: str, tmp_path: Path) -> None:
    """200 mixed texts of each and 46 of two lengths; and the page tells its outcome."""
    outcome = census.try_model_type(kind)
    assert outcome.runs == TOLD[kind]
    assert (outcome.long_texts == census.IN_PIECES) == (kind in CUT)
    if outcome.runs != census.REFUSED and kind not in NOT_MADE:
        write(tmp_path, kind)
        compare(kind, tmp_path, MIXED + EQUAL)


LENGTHS_IN_PIECES = [length - 2 for length in (3, 16, 17, 33, 49, 5, 64, 65, 129, 193, 257, 319, 8)]
"""Words of texts of up to 3 pieces of 16 and 64 tokens and a token, and of up to 2.5 pieces of 128, and short ones."""
CUT_OFTEN = {"bert", "ctrl", "gemma3n_text", "gpt2", "hrm_text", "longcat_flash", "olmo3", "t5"}
"""Of what runs packed: layers that share keys, that run several times, that attend in windows, keys and values of
different sizes, positions that are added, and models that look ahead."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in CUT_OFTEN else pytest.mark.slow)
        for kind, runs in TOLD.items()
        if runs == census.PACKED
    ],
)
def test_what_is_causal_and_packed_runs_in_pieces(kind: str, tmp_path: Path) -> None:
    """Whether a class looks ahead is what transformers' own code does. No other reason is left to run whole."""
    write(tmp_path, kind)
    if looks_ahead(kind, tmp_path):
        assert compare(kind, tmp_path, MIXED[:2]).whole_texts == "its tokens attend to tokens that come later"
    else:
        assert not compare_in_pieces(kind, tmp_path, LENGTHS_IN_PIECES, chunks=(16, 64, 128)).whole_texts


@torch.inference_mode()
def looks_ahead(kind: str, folder: Path) -> bool:
    """Whether the first hidden states of a text change with its last token, in transformers' own class."""
    with quiet():
        model = miniature.model_class(CONFIG_MAPPING[kind]).from_pretrained(folder).eval()
    model = model.encoder if model.config.is_encoder_decoder else model
    text = torch.tensor(random_ids([40], vocabulary=100))
    other = text.clone()
    other[0, -1] += 1
    one, two = (model(input_ids=ids).last_hidden_state[0, :20] for ids in (text, other))
    return bool((one - two).abs().max() > 1e-6 * one.abs().max())


def test_the_page_counts_what_it_lists() -> None:
    packed, equal, refused = (list(TOLD.values()).count(runs) for runs in census.RUNS)
    assert f"{packed} run packed, {equal} by equal length, {refused} are\nrefused" in PAGE.read_text()
