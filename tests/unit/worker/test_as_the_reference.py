"""Where the reference does something of its own, ours is the reference's; each time the plain way is far off."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, T5EncoderModel, T5ForConditionalGeneration

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.encoder.encoder import uncounted_id_of
from gpu_worker.model.heads.heads import LAST_REAL, HeadClassifier
from gpu_worker.model.loading import Model, load
from harness.random_models import miniature
from shared.errors import ModelRefused
from shared.jobs import Classify
from support.tiny import CPU, MULTI, ask, raw, reader, scores, token_rows, write_encoder

END, MASK = 3, 4
ROBERTA = ("roberta", "xlm-roberta", "camembert", "mpnet", "data2vec-text", "xmod", "esm")
"""Families whose padding id gets the position of its own number, wherever it stands."""


def texts(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(5, 900, length).tolist() for length in lengths]


@torch.inference_mode()
def alone(model: Any, chosen: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Rows of each text by transformers' own run of it."""
    return [model(input_ids=torch.tensor([text])).last_hidden_state[0].numpy() for text in chosen]


def written(folder: Path, kind: str, **options: Any) -> Any:
    """A tiny model of this type on disk, and as transformers loads it."""
    miniature.write(folder, kind, **options)
    return AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


def furthest(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


def rows(model: Model, chosen: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """All texts in one step."""
    return token_rows(ask(ModelEngine(model), raw(MULTI), chosen))


def test_a_classifier_reads_the_last_token_that_is_not_padding(tmp_path: Path) -> None:
    """By its id: where padding is also the end of a text, that is the row before the end."""
    write_encoder(tmp_path, "tiny-qwen2", "sequence-classification", labels=1)
    original = AutoModelForSequenceClassification.from_pretrained(tmp_path, attn_implementation="eager").eval()
    original.config.pad_token_id = END
    original.save_pretrained(tmp_path)
    chosen = [[*text, END] for text in texts(9, 4, 17)] + [[*texts(5)[0], END, END], [END, END], *texts(6)]
    with torch.inference_mode():
        theirs = np.array([original(input_ids=torch.tensor([text])).logits[0].numpy() for text in chosen])
    model = load(str(tmp_path), CPU)
    head = model.heads.classifier
    assert isinstance(head, HeadClassifier)
    assert head.pooling == LAST_REAL
    assert np.abs(scores(ask(ModelEngine(model), Classify(), chosen)) - theirs).max() <= 1e-4
    head.pooling = "lasttoken"
    assert np.abs(scores(ask(ModelEngine(model), Classify(), chosen)) - theirs)[:3].min() > 0.01


@pytest.mark.parametrize(
    "name", ["tiny-qwen2", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("tiny-gemma2", "tiny-gemma3"))]
)
def test_in_half_precision_the_same_row_is_read(name: str, tmp_path: Path) -> None:
    """There several rows are near enough; the nearest is taken."""
    original = write_encoder(tmp_path, name, "sequence-classification", labels=1)
    original.config.pad_token_id = END
    original.save_pretrained(tmp_path)
    model = load(str(tmp_path), Placement(device=CPU.device, dtype=torch.bfloat16))
    assert isinstance(model.heads.classifier, HeadClassifier)
    assert model.heads.classifier.pooling == LAST_REAL


@pytest.mark.parametrize("made", [AutoModel, AutoModelForSequenceClassification])
def test_a_model_that_short_texts_change_is_refused(tmp_path: Path, made: Any) -> None:
    """BigBird attends to blocks until the first short text, and to everything from then on; its classifier as well."""
    made.from_config(miniature.config_of("big_bird", block_size=8, num_labels=2)).save_pretrained(tmp_path)
    reader().save_pretrained(tmp_path)
    with pytest.raises(ModelRefused, match="depends on the texts before it"):
        load(str(tmp_path), CPU)


def test_an_encoder_decoder_without_modules_gives_its_encoder(tmp_path: Path) -> None:
    config = miniature.config_of("t5")
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    reader().save_pretrained(tmp_path)
    original = T5EncoderModel.from_pretrained(tmp_path).eval()
    chosen = texts(9, 30)
    assert furthest(rows(load(str(tmp_path), CPU), chosen), alone(original, chosen)) <= 2e-5


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("roberta", "mpnet", "xmod", "esm") else pytest.mark.slow)
        for kind in ROBERTA
    ],
)
def test_a_padding_token_in_a_text_is_not_counted(kind: str, tmp_path: Path) -> None:
    """RoBERTa's positions are told from ids."""
    original = written(tmp_path, kind)
    chosen = texts(12, 7, 30)
    for text in chosen:
        text[len(text) // 2] = uncounted_id_of(original)
    assert furthest(rows(load(str(tmp_path), CPU), chosen), alone(original, chosen)) <= 2e-5


@pytest.mark.parametrize("options", [{}, {"layer_types": ["full_attention"] * 3}], ids=["in chunks", "tempered"])
def test_llama_4_runs_by_equal_length(options: dict[str, Any], tmp_path: Path) -> None:
    """Its class tells chunks by its mask only, and tempers attention by the place in a run. Texts are shorter than its
    chunk and longer, and reach the positions at which it begins to temper."""
    original = written(tmp_path, "llama4_text", **options)
    assert original.config.attention_chunk_size == 16
    assert original.config.floor_scale == 24
    chosen = texts(60, 60, 15, 16, 17, 49)
    model = load(str(tmp_path), CPU)
    assert model.encoder.unpacked_reason == "its layers attend in chunks, or scale queries by their place in a run"
    assert furthest(rows(model, chosen), alone(original, chosen)) <= 2e-5


def test_a_mask_changes_its_own_text_alone(tmp_path: Path) -> None:
    """ESM with token dropout scales each text by its masks; packed, one text's masks would scale all."""
    original = written(tmp_path, "esm", token_dropout=True, mask_token_id=MASK)
    chosen = texts(12, 12, 7, 30)
    chosen[0][5] = MASK
    chosen[3][2] = chosen[3][9] = MASK
    model = load(str(tmp_path), CPU)
    assert model.encoder.unpacked_reason
    assert furthest(rows(model, chosen), alone(original, chosen)) <= 2e-5


def test_a_step_may_have_more_tokens_than_a_text_has_positions(tmp_path: Path) -> None:
    """CLIP's text tower compares all tokens of a run with its positions, so it runs by equal length."""
    original = written(tmp_path, "clip_text_model")
    assert original.config.max_position_embeddings == miniature.POSITIONS
    chosen = texts(*(120, 120, 77, 30, 30, 1))
    assert sum(map(len, chosen)) > miniature.POSITIONS
    model = load(str(tmp_path), CPU)
    assert "max_position_embeddings" in model.encoder.unpacked_reason
    assert furthest(rows(model, chosen), alone(original, chosen)) <= 2e-5


CLASSIFIERS = {
    "albert": {},
    "big_bird": {"attention_type": "original_full"},
    "jamba": {},
    "longformer": {},
    "luke": {},
    "xlnet": {},
}
"""Their classes ask an encoder for more than rows, or call it otherwise than a bare model is called: ALBERT's and
BigBird's poolers are plain layers, Jamba keeps a cache, Longformer attends from its first token, XLNet has memories."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind in ("big_bird", "jamba", "luke") else ())
        for kind in CLASSIFIERS
    ],
)
def test_a_classifier_that_wants_more_than_rows_is_served(kind: str, tmp_path: Path) -> None:
    """Its logits are those of its own class, one text at a time."""
    config = miniature.config_of(kind, num_labels=2, **CLASSIFIERS[kind])
    torch.manual_seed(0)
    original = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()
    miniature.widen(original, 0.2)
    original.save_pretrained(tmp_path)
    reader().save_pretrained(tmp_path)
    chosen = texts(9, 4, 17, 30, 1)
    with torch.inference_mode():
        theirs = np.array([original(input_ids=torch.tensor([text])).logits[0].numpy() for text in chosen])
    served = scores(ask(ModelEngine(load(str(tmp_path), CPU)), Classify(), chosen), columns=2)
    assert np.abs(served - theirs).max() <= 1e-4 * max(1.0, float(np.abs(theirs).max()))


def test_rotary_positions_that_a_long_text_stretches_do_not_stretch_its_mates(tmp_path: Path) -> None:
    """longrope takes other factors beyond the positions of its training, for the whole batch: so by equal length."""
    stretched = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, "factor": 10.0}
    factors = {"short_factor": [1.0] * 8, "long_factor": [3.0] * 8}
    original = written(tmp_path, "phi3", rope_parameters=stretched | factors, original_max_position_embeddings=32)
    model = load(str(tmp_path), CPU)
    assert model.encoder.unpacked_reason == "rope_type longrope changes a text's vector with the longest text beside it"
    assert "steps of many lengths take longer" in model.notice
    chosen = texts(10, 60, 33, 10)
    assert furthest(rows(model, chosen), alone(original, chosen)) <= 2e-5
