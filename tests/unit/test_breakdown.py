"""What `benchmarks.breakdown` divides, adds up and shows; nothing is measured here."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from references import mini_lm_path
from tokenizers import Tokenizer

from benchmarks import engine_alone, render, tables
from benchmarks.breakdown import Case, cases, figures, parts_of, processor_time
from benchmarks.engine_alone import Spent, timed
from benchmarks.load.outcome import Outcome
from benchmarks.load.tally import OK, Reply, Tally
from benchmarks.load.target import EMBED, PARTS, GrpcAddress
from selvage.v1 import embedding_pb2, ranking_pb2, usage_pb2
from shared.codec import duration_to_pb


def outcome(requests: int, cpu: dict[str, float], tokens: int = 1000) -> Outcome:
    """That many answers in ten seconds, told within eight."""
    tally = Tally(["all"], times=True)
    timing = usage_pb2.Timing(**{part: duration_to_pb(0.01) for part in PARTS})
    body = embedding_pb2.EmbedResponse(timing=timing).SerializeToString()
    for number in range(requests):
        tally.count(0, Reply(status=OK, body=body), 0.1, float(number))
    tally.read_times(GrpcAddress(servers=(), method=EMBED).times)
    return Outcome(seconds=8.0, window=10.0, tally=tally, tokens={0: tokens}, cpu_seconds=cpu)


def test_the_parts_of_an_answer_add_up_to_its_latency() -> None:
    """By their means; what no reply tells is the client's, the wire's and the frontend's rpc."""
    draw = np.random.default_rng(1)
    told = draw.uniform(0.001, 0.01, (500, len(PARTS)))
    outside = draw.uniform(0.002, 0.004, 500)
    found = parts_of(np.column_stack([told.sum(axis=1) + outside, told]).tolist(), bare=0.0015)
    assert set(found) == {"client and wire", *PARTS, "total"}
    whole = sum(figures["mean"] for name, figures in found.items() if name != "total")
    assert whole == pytest.approx(found["total"]["mean"], abs=0.01)
    own = found["client and wire"]
    assert own["median"] == pytest.approx(np.median(outside) * 1e3, abs=1e-3)
    assert own["p99"] == pytest.approx(np.quantile(outside, 0.99) * 1e3, abs=1e-3)
    assert (own["bare"], own["rpc of the frontend"]) == (1.5, pytest.approx(own["median"] - 1.5, abs=1e-3))
    for column, part in enumerate(PARTS):
        assert found[part]["median"] == pytest.approx(np.median(told[:, column]) * 1e3, abs=1e-3)


def test_what_the_services_add_is_told_for_each_of_them() -> None:
    """80 answers in 8 s are 100 in the window of 10 s: 100,000 tokens for 2 and 0.1 CPU seconds, beside 1.9 alone; in
    a slow round all take twice as long, which adds nothing."""
    spent = [Spent(tokens=200_000, seconds=4.0, cpu_seconds=each) for each in (3.8, 7.6, 9.0)]
    took = ((2.0, 0.1), (4.0, 0.2), (9.0, 0.1))
    outcomes = [outcome(80, {"worker": each, "frontend": own, "client 0": 5.0}) for each, own in took]
    found = processor_time(outcomes, spent)
    assert found["cpu_seconds_per_million_tokens"] == {"engine alone": 38.0, "frontend": 1.0, "worker": 40.0}
    assert found["added"] == pytest.approx(2 / 19, abs=1e-4)
    assert found["added"] == pytest.approx(found["added_by_frontend"] + found["added_by_worker"], abs=2e-4)
    assert found["engine_alone_tokens_per_second"] == 50_000


def test_the_engine_alone_is_measured_twice_a_round() -> None:
    """What it spent before and after the services is one."""
    both = Spent(tokens=1, seconds=2.0, cpu_seconds=3.0) + Spent(tokens=10, seconds=20.0, cpu_seconds=30.0)
    assert both == Spent(tokens=11, seconds=22.0, cpu_seconds=33.0)


def test_the_engine_is_timed_over_whole_passes() -> None:
    """One at least, however short the time; tokens of all passes, and CPU seconds of this process."""
    texts = [np.zeros(3, dtype=np.int32), np.zeros(4, dtype=np.int32)]
    passes = []

    def embed(given: Any, _: int) -> Any:
        passes.append(sum(range(200_000)))
        return given

    spent = timed(embed, texts, 0.0)
    assert (len(passes), spent.tokens) == (1, 7)
    assert spent.cpu_seconds > 0
    spent = timed(embed, texts, 0.05)
    assert spent.tokens == 7 * (len(passes) - 1)
    assert spent.seconds >= 0.05


def test_cases_have_the_tokens_and_texts_that_they_promise() -> None:
    """Exactly; where cores are saturated, the engine alone gets the texts of all requests. None repeats a text, which a
    frontend would have computed once."""
    read = Tokenizer.from_file(f"{mini_lm_path()}/tokenizer.json")
    read.no_truncation()
    read.no_padding()
    for case in cases(1):
        texts = [texts_of(case, request.body) for request in case.requests]
        counts = [sum(len(each.ids) for each in read.encode_batch(own)) for own in texts]
        assert counts == [request.tokens for request in case.requests], case.name
        assert all(len(set(own)) == len(own) for own in texts), case.name
        assert list(case.texts) in ([], [text for own in texts for text in own])
        assert bool(case.texts) is (case.clients > 1)


def texts_of(case: Case, body: bytes) -> list[str]:
    if case.method == EMBED:
        return list(embedding_pb2.EmbedRequest.FromString(body).texts)
    message = ranking_pb2.RerankRequest.FromString(body)
    return [message.query, *message.documents]


def test_work_done_on_requests_of_seconds_is_counted() -> None:
    """With a fair share of the worker for all, a window's end would cut off most of what was done on all of them."""
    big = [case for case in cases(1) if any(len(texts_of(case, each.body)) > 1 for each in case.requests)]
    assert [case.waves > 0 for case in big] == [case.clients > 1 for case in big]
    addresses = SimpleNamespace(frontends=[SimpleNamespace(address="127.0.0.1:1")])
    for case in cases(1):
        pattern = case.plan(addresses, 5.0, 1).pattern  # type: ignore[arg-type]
        expected = (None, case.clients * case.waves) if case.waves else (5.0, None)
        assert (pattern.seconds, pattern.requests) == expected


def result() -> dict[str, Any]:
    """Of one case for one client and one that saturates."""
    alone = Spent(tokens=200_000, seconds=4.0, cpu_seconds=4.0)
    single, many = Case.embedding("one", 1, [[16]], 1), Case.embedding("many", 64, [[16]], 1, full=True)
    run = outcome(80, {"worker": 2.0, "frontend": 0.1})
    made = {"one": figures(single, [(run, None)], 0.001), "many": figures(many, [(run, alone)], 0.001)}
    machine = {"processor": "a processor", "cores": 2}
    return {"model": "minilm", "rounds": 1, "seconds": 10.0, "machine": machine, "cases": made}


def test_the_page_shows_every_case_and_the_goal_where_cores_are_saturated() -> None:
    """Through JSON."""
    shown = tables.breakdown(json.loads(json.dumps(result())))
    rows = [re.split(r" *\| *", line.strip("| ")) for line in shown.splitlines() if re.match(r"\| (one|many)", line)]
    assert [row[0] for row in rows] == ["one", "many", "many"]
    assert rows[0][1:5] == ["10.0", "1.00", "49.00", "10.00 (10.00)"]
    assert rows[0][-1] == "100.00 (100.00)"
    assert rows[2] == ["many", "20.0", "20.0", "1.0", "+0.0%", "+5.0%", "+5.0%", "at most 10%"]


def test_a_page_of_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark without a result has no part of it."""
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    assert "##" not in render.measured()
    (tmp_path / "breakdown-cpu.json").write_text(json.dumps(result()))
    assert render.measured().count("## ") == 1
    assert "Where the time of a request goes" in render.measured()


async def test_the_engine_alone_answers_from_a_process_of_its_own() -> None:
    """Tokens of all texts, whole passes; the process ends with its input."""
    async with engine_alone.engine_alone("random:tiny-bert", 0) as engine:
        spent = await engine.embed(["w101 w102", "w103"], 0.0)
        assert spent.tokens == 4 + 3
        assert min(spent.seconds, spent.cpu_seconds) > 0
    assert engine._process.returncode == 0
