"""Limits of texts in pieces: how they are chosen, what does not fit, and where a user reads of it."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from embedded.options import settings_of
from gpu_worker import worker
from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.engine.jobs.units import WHOLE, PieceLimits
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions
from gpu_worker.schedule.scheduler import Scheduler
from gpu_worker.schedule.steps import EndedJob
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup import piece_limits as limits
from gpu_worker.worker import load_model
from harness.synchronous_driver import advance
from shared.card import LateInteraction
from shared.errors import InputTooLong, ModelRefused
from shared.jobs import Job, JobResult, RaggedTokens
from shared.vectors import OutputKind
from support.checked import checked
from support.in_pieces import run_in_steps
from support.random_models import random_model
from support.tiny import CPU, dense_rows, encode, random_ids, write_encoder, write_json

pytestmark = pytest.mark.usefixtures("one_thread")
MEBIBYTE = 1 << 20
TOKEN_BYTES = 3 * 2 * 2 * 16 * 4 + 64 * 4
"""Of tiny-qwen3 in float32: three layers' keys and values of two heads of 16, and hidden states of 64."""
FITTING = MEBIBYTE // TOKEN_BYTES
POSITIONS = 2 * FITTING


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model that reads texts of twice the tokens whose keys and values fit into a mebibyte."""
    path = tmp_path_factory.mktemp("long")
    write_encoder(path, "tiny-qwen3")
    config = json.loads((path / "config.json").read_text())
    return write_json(path, config=config | {"max_position_embeddings": POSITIONS})


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(str(folder), CPU)


def job(*lengths: int) -> Job:
    return Job(id=0, work=encode(OutputKind.DENSE), tokens=RaggedTokens.of(random_ids(lengths)))


def test_the_card_tells_of_pieces_and_of_their_memory(model: Model) -> None:
    """Texts up to a piece's length run whole, however little memory there is for keys and values."""
    assert (model.token_bytes, model.max_tokens) == (TOKEN_BYTES, POSITIONS)
    card = card_of(model, chunk_tokens=64, cache_tokens=POSITIONS)
    assert (card.whole_texts, card.limited_by) == ("", "")
    assert card == replace(card_of(model), chunk_tokens=64, cache_tokens=POSITIONS)
    assert card_of(model, chunk_tokens=100, cache_tokens=10).max_tokens == 100


def test_the_card_promises_no_text_that_does_not_fit(model: Model) -> None:
    """Its limits are lowered, by a setting that it names; a text cut off there has other rows: another fingerprint."""
    card, plain = card_of(model, chunk_tokens=64, cache_tokens=1000), card_of(model)
    assert card.max_tokens == 1000
    assert card.limited_by == "--cache-megabytes"
    assert card.notice == "; ".join(filter(None, (plain.notice, "--cache-megabytes limits texts to 1000 tokens")))
    others = {card_of(model, chunk_tokens=64, cache_tokens=number).fingerprint for number in (999, 1001, POSITIONS)}
    assert len({card.fingerprint, plain.fingerprint, *others}) == 4
    assert card.fingerprint == card_of(model, chunk_tokens=128, cache_tokens=1000).fingerprint
    late = LateInteraction(query_length=32, document_length=POSITIONS)
    lowered = card_of(replace(model, late_interaction=late), chunk_tokens=64, cache_tokens=1000)
    assert lowered.late_interaction == replace(late, document_length=1000)


@pytest.mark.parametrize(
    ("name", "cuts", "why"),
    [
        ("tiny-bert", True, "its tokens attend to tokens that come later"),
        ("tiny-qwen3", False, "--chunk-tokens is 0"),
    ],
)
def test_the_card_says_why_texts_are_not_cut(name: str, cuts: bool, why: str) -> None:
    whole = load(random_model(name), CPU, LoadOptions(cuts=cuts))
    card = limits.card_with_limits(whole, limits.piece_limits(whole, 2048, None, limits.cache_bytes(whole, 0)))
    assert (card.chunk_tokens, card.cache_tokens, card.whole_texts) == (0, 0, why)
    assert card == card_of(whole)
    assert limits.summary(whole, card) == f"each in one step: {why}"
    assert whole.unshared == (why if cuts else "")


def test_all_keys_count_where_layers_have_windows(tmp_path: Path) -> None:
    """In the limit, in room and in the card."""
    write_encoder(tmp_path, "tiny-mistral")
    config = json.loads((tmp_path / "config.json").read_text())
    windowed = load(str(write_json(tmp_path, config=config | {"max_position_embeddings": 1000})), CPU)
    longest = 400_000 // TOKEN_BYTES
    decided = limits.piece_limits(windowed, 2048, 100, 400_000)
    card = limits.card_with_limits(windowed, decided)
    assert (card.max_tokens, card.cache_tokens, card.limited_by) == (longest, longest, "--cache-megabytes")
    engine = ModelEngine(windowed)
    [expected] = run_in_steps(engine, [job(longest)])
    engine.cut_texts(decided)
    scheduler = Scheduler(engine, step_tokens=300, queued_tokens=10**6, cache_bytes=decided.cache_bytes)
    scheduler.submit(job(longest))
    taken = list[int]()
    [ended] = outcomes_of(scheduler, taken)
    assert isinstance(ended.outcome, JobResult)
    assert abs(dense_rows(ended.outcome) - dense_rows(expected)).max() < 1e-5
    assert (max(taken), scheduler.room.taken) == (longest * TOKEN_BYTES, 0)
    with pytest.raises(InputTooLong, match=rf"{longest + 1} tokens, --cache-megabytes .* of {longest}$"):
        scheduler.submit(job(longest + 1))


def outcomes_of(scheduler: Scheduler, taken: list[int]) -> Iterator[EndedJob]:
    """The jobs that end, until none is left; after each action adds the room that is taken."""
    while scheduler.queued[1]:
        yield from advance(scheduler)
        taken.append(scheduler.room.taken)


def test_pieces_are_an_eighth_of_a_step_by_default(model: Model) -> None:
    token_bytes = model.token_bytes
    for chosen, longest in ((None, 256), (96, 96)):
        decided = limits.piece_limits(model, 2048, chosen, MEBIBYTE)
        assert decided == PieceLimits(
            longest=longest, cache_bytes=MEBIBYTE, token_bytes=token_bytes, shares=True, together=256
        )
        assert decided.cache_tokens == FITTING
    assert limits.piece_limits(model, 2048, 0, MEBIBYTE) == replace(WHOLE, shares=True, together=256)
    assert limits.piece_limits(model, 2048, None, 0) == replace(WHOLE, shares=True, together=256)
    assert limits.piece_limits(replace(model, unshared="for a reason"), 2048, 0, MEBIBYTE) == WHOLE


def test_there_is_room_for_the_longest_text_by_default(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as half of what the weights leave of the machine's memory allows; then it is a multiple of 1,024 tokens,
    so that a machine with a few pages less serves the same limit."""
    block = 1024 * TOKEN_BYTES
    for fewer in (0, 4096):
        monkeypatch.setattr(limits, "machine_memory", lambda less=fewer: (64 << 30) + block + model.weight_bytes - less)
        assert limits.cache_bytes(model, 0) == 2 << 30
        assert limits.cache_bytes(replace(model, max_tokens=4 << 20), 0) == (4 << 20) * TOKEN_BYTES
        assert limits.cache_bytes(replace(model, max_tokens=1 << 30), 0) == (32 << 30) // block * block
    monkeypatch.setattr(limits, "machine_memory", lambda: block + model.weight_bytes)
    assert limits.cache_bytes(model, 0) == block // 2
    monkeypatch.setattr(limits, "machine_memory", lambda: model.weight_bytes - 1)
    assert limits.cache_bytes(model, 0) == 0


def test_more_memory_than_there_is_refuses_the_start(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "machine_memory", lambda: 512 * MEBIBYTE + model.weight_bytes)
    assert limits.cache_bytes(model, 512) == 512 * MEBIBYTE
    with pytest.raises(ModelRefused, match=r"^--cache-megabytes = 513: there are 512 MiB of memory for it$"):
        limits.cache_bytes(model, 513)


def test_a_containers_limit_counts_as_the_machines_memory(tmp_path: Path) -> None:
    """Of both versions of cgroups, where either is set; `max` and a missing file mean that there is none."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    second, first = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    assert limits.machine_memory((second, first)) == physical
    second.write_text("max\n")
    first.write_text("9223372036854771712\n")
    assert limits.machine_memory((second, first)) == physical
    second.write_text(f"{8 * MEBIBYTE}\n")
    assert limits.machine_memory((second, first)) == 8 * MEBIBYTE
    assert 0 < limits.machine_memory() <= physical


def test_memory_for_no_pieces_is_refused() -> None:
    """By the worker, and by an embedded engine, which has both settings."""
    with pytest.raises(SystemExit) as raised:
        WorkerSettings.read(["--chunk-tokens", "0", "--cache-megabytes", "1"])
    assert raised.value.code == 2
    settings = settings_of("tiny", {"chunk_tokens": 64, "cache_megabytes": 1, "device": "cpu"})
    assert (settings.chunk_tokens, settings.cache_megabytes) == (64, 1)
    assert load_model(settings_of(random_model("tiny-qwen3"), {"chunk_tokens": 0, "device": "cpu"})).whole_texts
    with pytest.raises(ValueError, match=r"^--cache-megabytes 1 is for texts in pieces, --chunk-tokens is 0$"):
        settings_of("tiny", {"chunk_tokens": 0, "cache_megabytes": 1})
    with pytest.raises(ValueError, match=r"^chunk_tokens = -1: "):
        settings_of("tiny", {"chunk_tokens": -1})


def test_an_accelerators_share_is_of_what_the_weights_leave(model: Model) -> None:
    """A quarter by default; the user's number up to all of it."""
    placement = SimpleNamespace(memory={"limit": model.weight_bytes + 8 * MEBIBYTE})
    on_device = replace(model, placement=placement)  # type: ignore[arg-type]
    assert limits.cache_bytes(on_device, 0) == 2 * MEBIBYTE
    assert limits.cache_bytes(on_device, 8) == 8 * MEBIBYTE
    with pytest.raises(ModelRefused, match=r"^--cache-megabytes = 9: there are 8 MiB of memory for it$"):
        limits.cache_bytes(on_device, 9)


def test_the_warm_up_keeps_to_the_limits(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts of 256 tokens would be refused where only ten fit."""
    monkeypatch.setattr(worker, "cache_bytes", lambda model, megabytes: 10 * TOKEN_BYTES)
    assert checked(folder, "--chunk-tokens", "8") == 0
    assert "max_tokens 10" in [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_check_prints_the_limits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(folder, "--chunk-tokens", "64", "--cache-megabytes", "1") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"max_tokens {FITTING}" in lines
    assert f"long texts in pieces of 64 tokens; what is kept of a text of {FITTING} tokens fits into 1 MiB" in lines


def test_an_accelerators_pieces_do_not_shrink_with_its_steps(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of fewer tokens than there is memory for overlaps with another; a piece fits into a step all the same."""
    memory = 1 << 30
    assert limits.piece_limits(model, 2048, None, memory).longest == 256
    monkeypatch.setattr(Placement, "device_memory", object())
    monkeypatch.setattr(Placement, "step_tokens", 16_384)
    longest = [limits.piece_limits(model, tokens, None, memory).longest for tokens in (512, 4096, 16_384, 65_536)]
    assert longest == [512, 2048, 2048, 8192]
