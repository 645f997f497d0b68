"""A model runs the attention that transformers takes for its class and config by default, whatever its config says."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AttentionInterface, Gemma2Model
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import quiet
from shared.errors import ModelRefused
from support.architectures import EQUAL, LISTED, MIXED, SERVED, compare, write
from support.attention_options import combinations, named
from support.tiny import CPU

LENGTHS = [*MIXED[:10], *EQUAL[-3:], 1, 2, 150]
OTHER_MEANING = "attention, which transformers runs for its config by default, gives other hidden states than its"
REFUSED = ("dynamic", "is_decoder=True", "attn_type=uni")
"""What makes a text's vector depend on others; a decoder of an encoder whose decoder nobody feeds; and XLNet with
causal attention, which transformers itself cannot run for more than one text at a time."""


def served(folder: Path, kind: str, **options: Any) -> Model:
    write(folder, kind, **options)
    return compare(kind, folder, LENGTHS)


@pytest.mark.parametrize(
    ("kind", "options", "own", "other"),
    [
        ("falcon", {"alibi": True}, "sdpa", "eager"),
        ("falcon", {"alibi": True, "attn_implementation": "eager"}, "eager", "sdpa"),
        ("gemma", {"use_bidirectional_attention": True}, "sdpa", "eager"),
    ],
    ids=["falcon", "falcon as its file says", "gemma"],
)
def test_where_two_attentions_compute_two_things_the_default_is_followed(
    kind: str, options: dict[str, Any], own: str, other: str, tmp_path: Path
) -> None:
    """And the card says so. Falcon's alibi is scaled in one of them only, by up to 2.3e-1 at unit length; Gemma's mask
    of both directions is applied in one of them only, by up to 0.4."""
    assert f"its {own} {OTHER_MEANING} {other} one" in served(tmp_path, kind, **options).notice


@pytest.mark.parametrize("kind", ["falcon", "bert"])
def test_where_they_compute_the_same_nothing_is_said(kind: str, tmp_path: Path) -> None:
    assert OTHER_MEANING not in served(tmp_path, kind).notice


def test_a_default_that_cannot_run_gives_way_to_the_written_out_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a class that takes PyTorch's attention and hands it a softcap; sentence-transformers fails until it is told to
    take the other."""

    def refusing(*arguments: Any, softcap: float | None = None, **options: Any) -> Any:
        if softcap is not None:
            raise ValueError("no softcap here")
        return sdpa_attention_forward(*arguments, **options)

    write(tmp_path, "gemma2")
    monkeypatch.setattr(Gemma2Model, "_supports_sdpa", True)
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", refusing)
    with pytest.raises(ValueError, match="no softcap here"):
        compare("gemma2", tmp_path, LENGTHS)
    notice = load(str(tmp_path), CPU).notice
    assert "its default attention, sdpa, cannot run, so its eager one serves" in notice
    assert "no softcap here" in notice


def test_a_softcap_that_the_default_does_not_know_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma 2 under transformers 5.17: PyTorch's attention ignores what its config says, and so do packed texts."""

    def ignoring(*arguments: Any, softcap: float | None = None, **options: Any) -> Any:
        return sdpa_attention_forward(*arguments, **options)

    monkeypatch.setattr(Gemma2Model, "_supports_sdpa", True)
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", ignoring)
    model = served(tmp_path, "gemma2", attn_logit_softcapping=1.0)
    assert not model.encoder.unpacked_reason
    assert OTHER_MEANING in model.notice


def test_a_kernel_of_a_package_is_not_needed(tmp_path: Path) -> None:
    """It computes what PyTorch's attention computes; sentence-transformers fails without the package."""
    write(tmp_path, "bert", attn_implementation="flash_attention_2")
    asked = load(str(tmp_path), CPU)
    assert not asked.encoder.unpacked_reason


def outcome(folder: Path, kind: str, options: dict[str, Any]) -> str:
    """What becomes of a combination. Raises AssertionError where it is served wrong."""
    try:
        with quiet():
            write(folder, kind, **options)
    except Exception:  # transformers' own code, which does not know this combination
        return "not built"
    try:
        compare(kind, folder, LENGTHS)
    except ModelRefused:
        return "refused"
    except AssertionError:
        return "wrong"
    except Exception:  # of sentence-transformers, which fails with it
        return "not theirs"
    return "served"


@pytest.mark.slow
@pytest.mark.parametrize("kind", LISTED)
def test_no_option_is_served_wrong(kind: str, tmp_path: Path) -> None:
    """Every combination of the table: served as sentence-transformers does, or refused for a reason that is known."""
    found = {}
    for number, (_, options) in enumerate(combinations([kind])):
        folder = tmp_path / str(number)
        folder.mkdir()
        found[named(kind, options)] = outcome(folder, kind, options)
    assert [name for name, each in found.items() if each == "wrong"] == []
    refused = [name for name, each in found.items() if each == "refused"]
    assert kind not in SERVED or all(any(word in name for word in REFUSED) for name in refused)
