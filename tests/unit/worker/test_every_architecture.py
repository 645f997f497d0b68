"""Every text architecture of the installed transformers is served as sentence-transformers would, or refused.

Some of the families that issue reports name are tried at every run, all of them by `make test-slow`.
"""

from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING

from gpu_worker.model.source import quiet
from harness import supported_models as census
from harness.random_models import miniature
from support.architectures import CUT, EQUAL, LISTED, MIXED, NOT_MADE, PAGE, TOLD, compare, compare_in_pieces, write
from support.tiny import random_ids

NAMED = (
    "bloom", "deberta", "falcon", "gpt_oss", "jamba", "longformer", "mamba", "megatron-bert", "mobilebert", "mpt",
    "nemotron", "rembert", "roformer", "stablelm", "xlnet",
)  # fmt: skip
"""Those that once were refused for a reason that was ours."""
OFTEN = {"bloom", "deberta", "gpt_oss", "jamba", "longformer", "roformer", "xlnet"}
"""Of them: positions by attention, by content, by rotation and by memory; experts, state, windows."""
PACKED_AT_FIRST = (
    "afmoe", "albert", "apertus", "arcee", "aria_text", "axk1", "beam", "bert", "bert-generation", "bitnet",
    "camembert", "cohere", "cohere2", "cohere2_moe", "cosmos3_edge_text", "ctrl", "cwm", "data2vec-text",
    "deberta-v2", "deepseek_v2", "deepseek_v3", "distilbert", "dots1", "electra", "ernie", "ernie4_5",
    "ernie4_5_moe", "esm", "esmc", "eurobert", "exaone4", "exaone_moe", "flex_olmo", "gemma", "gemma2",
    "gemma3_text", "gemma3n_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v_moe_text", "glm4v_text",
    "glm_image_text", "glm_ocr_text", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "granitemoe",
    "granitemoeshared", "gte", "helium", "hunyuan_v1_dense", "hunyuan_vl_text", "hy_v3", "hyperclovax", "internlm3",
    "iquestcoder", "jais2", "jetmoe", "jina_embeddings_v3", "kolibri1", "laguna", "llama", "mellum", "minicpm3",
    "minimax_m2", "minimax_m3_vl_text", "ministral", "ministral3", "mistral", "mistral4", "mixtral", "modernbert",
    "modernbert-decoder", "molmo2_text", "mpnet", "muse_glimmer_text", "muse_spark_text", "nanochat", "nomic_bert",
    "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "qwen2", "qwen2_5_vl_text", "qwen2_moe",
    "qwen2_vl_text", "qwen3", "qwen3_moe", "roberta", "roberta-prelayernorm", "roc_bert", "seed_oss", "smollm3",
    "solar_open", "starcoder2", "ultrabert", "vaultgemma", "xlm-roberta", "xlm-roberta-xl", "xmod", "youtu",
)  # fmt: skip
"""What the first version served; all of them packed, so they still are. Two more that it loaded, the text towers of
CLIP and TIPSv2, failed on steps of more tokens than a text may have: they now run by equal length."""


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=() if each in OFTEN else pytest.mark.slow) for each in NAMED]
)
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
    """Whether a class looks ahead is what transformers' own code does, and no other reason is left to run whole."""
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


@pytest.mark.parametrize("kind", [*PACKED_AT_FIRST, "t5", "mt5", "umt5"])
def test_what_ran_packed_still_does(kind: str) -> None:
    """And T5's encoders join them; the sweep holds the page to what is."""
    assert TOLD[kind] == census.PACKED


@pytest.mark.parametrize(
    ("kind", "long_texts"),
    [("qwen3", census.IN_PIECES), ("llama", census.IN_PIECES), ("bert", ""), ("deberta", "")],
)
def test_the_table_tells_how_long_texts_are_computed(kind: str, long_texts: str) -> None:
    """Causal families in pieces; those of the other families whole, which needs no reason."""
    outcome = census.try_model_type(kind)
    assert outcome.long_texts == long_texts
    before, after = "Before.\n\n", "\n\nAfter.\n"
    text = census.page(f"{before}{census.BEGIN}old{census.END}{after}", [outcome])
    assert census.listed(text) == {kind: outcome}
    assert f"Long texts of {int(bool(long_texts))} are computed in pieces" in text
    assert "old" not in text
    assert (text[: len(before)], text[-len(after) :]) == (before, after)


def test_the_page_counts_what_it_lists() -> None:
    packed, equal, refused = (list(TOLD.values()).count(runs) for runs in census.RUNS)
    assert f"{packed} run packed, {equal} by equal length, {refused} are\nrefused" in PAGE.read_text()
