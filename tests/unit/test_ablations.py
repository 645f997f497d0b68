"""The variants of every ablation do the same thing; that they are timed fairly is for their readers."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import figures
from benchmarks.ablations import late_interaction, lengths, masks, padding, projection, splitting, tokenizing
from benchmarks.ablations.__main__ import ablation, lines
from benchmarks.ablations.case import Case
from benchmarks.ablations.conditions import Conditions
from benchmarks.ablations.frontends import Work
from frontend_service.tokenization import Tokenization
from gpu_worker.device.placement import Dtype, Placement
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load

TINY = "random:tiny-bert"
CPU = torch.device("cpu")
ONCE = Conditions(device=CPU, model=TINY, rounds=2, turn=0.0, quick=True)
RAGGED = np.array([3, 1, 40, 3, 17])
SPREAD = {"unit", "median", "lower_quartile", "upper_quartile", "rounds"}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small products are faster without others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load(TINY, Placement.choose("cpu", "float32"))


def check(outcome: dict[str, Any], figure: str = "time") -> None:
    """A case as the renderer reads it."""
    assert set(outcome) == {"case", "given", "ours", "rounds", "variants", "against"}
    assert next(iter(outcome["variants"])) == outcome["ours"]
    assert set(outcome["against"]) == set(outcome["variants"]) - {outcome["ours"]}
    for variant in outcome["variants"].values():
        assert set(variant) == {"largest_difference", "figures"}
        assert set(variant["figures"][figure]) == SPREAD
        assert len(variant["figures"][figure]["rounds"]) == outcome["rounds"]
        for each in variant["figures"].values():
            assert each["unit"] in ("seconds", "count", "count/second")
            assert set(each) == ({"unit", "value"} if each["unit"] == "count" else SPREAD)
    for other in outcome["against"].values():
        assert set(other[figure]) == {"ratio", "lower_quartile", "upper_quartile", "verdict"}
    assert json.loads(json.dumps(outcome)) == outcome
    assert len(lines(outcome)) == len(outcome["variants"])


def measured(case: Case) -> dict[str, Any]:
    """Compared and timed."""
    outcome = case.measure(ONCE)
    check(outcome)
    return outcome


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_projection_equals_a_loop(dtype: Dtype) -> None:
    """(a), in both formats."""
    measured(projection.case_of("ragged", RAGGED, 24, Placement.choose("cpu", dtype), 1))


def test_one_projection_equals_a_loop_behind_a_trunk(tiny: Model) -> None:
    """(a), whole steps."""
    measured(projection.whole_step("ragged", RAGGED, tiny, 1))


def test_every_split_gives_the_same_rows() -> None:
    """(b), with the reads that each needs."""
    figures_of = {name: each["figures"] for name, each in measured(splitting.case_of(RAGGED, ONCE))["variants"].items()}
    assert {name: each["device_reads"]["value"] for name, each in figures_of.items()} == {
        splitting.SPLIT: 0,
        splitting.VIEWS: 0,
        splitting.READ: 10,
        splitting.LIST: 1,
    }


def test_splitting_is_timed_behind_other_work() -> None:
    """(b), as on an accelerator that is busy."""
    launched: list[int] = []
    outcome = measured(splitting.case_of(RAGGED, ONCE, lambda: launched.append(1)))
    assert outcome["case"].endswith("the device busy")
    assert launched


@pytest.mark.parametrize("name", ["skiplist", "lexical weights", "instruction ends"])
def test_masks_of_host_and_device_agree(name: str) -> None:
    """(c), where something is found at all."""
    tokens = masks.Tokens.of(np.array([1, 30, 17, 2, 64]), 1, CPU)
    made = (masks.skiplist(tokens), masks.lexical(tokens, 1), masks.instructions(tokens))
    case = next(each for each in made if each.name == name)
    measured(case)
    found = case.variants[masks.HOST]()
    assert len({float(each) for array in found for each in array}) > 1 or name == "skiplist"


def test_instructions_and_skiplist_are_there() -> None:
    """(c), so that agreement says something."""
    tokens = masks.Tokens.of(np.full(64, 64), 1, CPU)
    ends = masks.instructions(tokens).variants[masks.BACK]()[0]
    assert ends.tolist() == [13, 0] * 32
    kept = masks.skiplist(tokens).variants[masks.BACK]()[0]
    assert 0 < kept.sum() < len(tokens.ids)


def test_every_way_of_scoring_agrees() -> None:
    """(d), more documents than a padded batch holds."""
    found = lengths.lognormal(70, 1, mean=12)
    case, rerank = late_interaction.case_of("small", found, ONCE)
    outcome = measured(case)
    sent = {name: each["figures"]["bytes_sent"]["value"] for name, each in outcome["variants"].items()}
    rows = int(found.sum())
    assert sent[late_interaction.RAGGED] == 4 * 70
    assert rows * 512 < sent[late_interaction.CLIENT] < rows * 512 + 100
    assert rows * 256 < sent[late_interaction.CLIENT_HALF] < rows * 256 + 100
    assert set(late_interaction.stages(rerank, late_interaction.CLIENT, ONCE)) == {"serialise", "parse", "score"}


def test_every_frontend_gives_the_same(tiny: Model) -> None:
    """(e), with fewer and with more clients than a batch holds."""
    work = Work(tokenization=Tokenization(tiny.tokenizer.content, card_of(tiny)))
    words = tokenizing.words_of(TINY)
    with ThreadPoolExecutor(2) as threads:
        for clients, letters, ours in (
            (1, 380, tokenizing.INLINE),
            (70, 380, tokenizing.INLINE),
            (2, 2300, tokenizing.THREADS),
        ):
            given = tokenizing.texts(words, 1, letters)
            outcome = tokenizing.at(clients, work, given, ONCE, threads)
            assert outcome["ours"] == ours
            for figure in (tokenizing.TIME, tokenizing.P50, tokenizing.P99, tokenizing.STALL):
                check(outcome, figure)
    assert len(set(given)) > 10


def test_a_failing_batch_fails_its_calls(tiny: Model) -> None:
    """(e): nobody waits for ever."""
    work = Work(tokenization=Tokenization(tiny.tokenizer.content, card_of(tiny)))

    async def ask(frontend: Any) -> list[Any]:
        wrong: Any = None
        return await asyncio.gather(frontend.tokenize(wrong), frontend.tokenize(wrong), return_exceptions=True)

    with ThreadPoolExecutor(1) as threads:
        for make in tokenizing.frontends(work, threads).values():
            assert all(isinstance(each, TypeError) for each in asyncio.run(ask(make())))


@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize("name", [TINY, "random:tiny-mistral", "random:tiny-xlm-roberta"])
def test_padding_equals_packing(name: str, by_length: bool) -> None:
    """(f), for masks, windows, grouped heads and positions that begin later."""
    model = load(name, Placement.choose("cpu", "float32"))
    found = np.minimum(lengths.bimodal(9, 1), 60)
    outcome = padding.measured(padding.case_of(model, "bimodal", found, 1, 512, by_length=by_length), ONCE)
    check(outcome)
    assert all("real_tokens_per_second" in each["figures"] for each in outcome["variants"].values())
    computed = {name: each["figures"]["tokens_computed"]["value"] for name, each in outcome["variants"].items()}
    assert computed == {padding.PACKED: found.sum(), padding.PADDED: 9 * 60}


def test_a_variant_that_differs_is_not_timed() -> None:
    """The proof is one."""
    case = Case(
        name="wrong", given={}, ours="a", variants={"a": lambda: [torch.ones(2)], "b": lambda: [torch.zeros(2)]}
    )
    with pytest.raises(AssertionError, match=r"wrong: b differs by 1\.0"):
        case.measure(ONCE)


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ([2.0, 2.1, 2.2], "gains"),
        ([0.5, 0.5, 0.6], "loses"),
        ([1.04, 0.97, 1.2], "nothing"),
        ([0.2, 1.5, 2], "unclear"),
    ],
)
def test_a_ratio_says_what_it_is_worth(others: list[float], verdict: str) -> None:
    """Round by round, with its spread."""
    assert figures.against([1.0, 1.0, 1.0], others)["verdict"] == verdict


def test_steps_hold_every_text_once() -> None:
    """Up to the budget, one text at least, in either order."""
    found = np.array([5, 900, 30, 30, 2, 8])
    assert lengths.steps(found, 64, by_length=False) == [[0], [1], [2, 3, 4], [5]]
    assert lengths.steps(found, 64, by_length=True) == [[4, 0, 5, 2], [3], [1]]


def test_a_machine_with_pytorch_alone_runs_all_but_the_frontends() -> None:
    """What is measured on an accelerator imports neither gRPC nor protobuf nor a frontend."""
    absent = ["grpc", "google", "selvage", "structlog", "pydantic", "rich", "frontend_service"]
    modules = ("__main__", "projection", "splitting", "masks", "late_interaction", "padding")
    program = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\n"
    program += "".join(f"import benchmarks.ablations.{each}\n" for each in modules)
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root, env={"PYTHONPATH": f"{root}:{root}/protos"})


@pytest.mark.parametrize("letter", "abcdef")
def test_every_ablation_says_what_it_is(letter: str) -> None:
    """As the results file has it."""
    found = ablation(letter)
    assert found.letter == letter
    assert set(found.as_json([])) == {"idea", "how", "published", "cases"}
    for each in found.published:
        assert set(each.as_json()) == {"who", "what", "value", "unit", "source"}
