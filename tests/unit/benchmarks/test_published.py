"""The published tables: what is asked, and who answers. No vLLM: fakes over HTTP, and our own engine."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from tokenizers import Tokenizer

from benchmarks.load.loops import Call
from benchmarks.load.outcome import LoadFailed
from benchmarks.load.processor import CpuSeconds, is_running
from benchmarks.load.target import texts_of
from benchmarks.machine import ROOT
from benchmarks.peers.process import free_port
from benchmarks.published import answers, models, run, servers
from benchmarks.published.driver import COMPARED, Window, body, drive, figures, rows_of, seeds
from benchmarks.published.rows import OURS, VLLM, Case, Row, rows
from benchmarks.published.servers import Launch, ReadyServer, started
from benchmarks.rounds import ALONE, SHARE
from harness.random_models import synthetic
from support.published import CASE, ROW, fake


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MODELS", tmp_path)
    monkeypatch.setattr(models, "MODELS", tmp_path)


@pytest.fixture
def server() -> Iterator[ReadyServer]:
    with started("fake", fake("rows")) as running:
        yield running


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_every_text_has_its_tokens(row: Row) -> None:
    """By the tokenizer that both servers read; of MiniLM's, test_workloads tells."""
    tokenizer = Tokenizer.from_str(synthetic.tokenizer(30_000).content.decode())
    for case in row.cases:
        for stream in case.streams:
            workload = replace(stream.workload, requests=stream.workload.requests[:3])
            if not workload.model.startswith("random:"):
                continue
            for texts, lengths in zip(texts_of(workload, 1), workload.requests, strict=True):
                assert [len(tokenizer.encode(text).ids) for text in texts] == list(lengths)


def test_token_rows_and_scores_are_read_too() -> None:
    """A matrix for each text; scores by the documents' order, not by rank."""
    sent = json.loads(body("tokens", "fake", ["a"]))
    assert (sent["task"], sent["encoding_format"]) == ("token_embed", "base64")
    data = [{"index": 0, "data": "AACAPwAAAEAAAEBAAACAQA=="}]
    (rows,) = rows_of("tokens", json.dumps({"data": data, "usage": {"prompt_tokens": 2}}).encode(), [2])
    assert rows.tolist() == [[1, 2], [3, 4]]
    assert json.loads(body("rerank", "fake", ["q", "a", "b"])) == {
        "model": "fake",
        "query": "q",
        "documents": ["a", "b"],
    }
    results = [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.25}]
    (scores,) = rows_of("rerank", json.dumps({"results": results}).encode(), [1, 2, 2])
    assert scores.tolist() == [[0.25, 0.5]]


async def test_clients_report_rates_latencies_errors_and_cpu(server: ReadyServer) -> None:
    """Of the window; refused calls are errors and no latencies."""
    told = await drive(ROW, CASE, server.url, 0.5, server.pids)
    assert told["errors"] == 0
    assert told["tokens/s"] == pytest.approx(7 * told["requests/s"], rel=0.1)
    assert told["p50 ms"] <= told["p95 ms"] <= told["p99 ms"]
    assert told["fake: peak MiB"] > 1
    assert told["fake: CPU ms/request"] >= 0  # ticks of 10 ms
    assert told["clients: CPU ms/request"] >= 0
    with started("refusing", fake("refuse")) as refusing:
        told = await drive(ROW, CASE, refusing.url, 0.5, refusing.pids)
    assert told["errors"] > 0


def window(measured: list[float], beside: list[float]) -> Window:
    calls = [[Call(due=end - 0.5, ended=end, status="OK", request=0) for end in ends] for ends in (measured, beside)]
    spent = {"worker": CpuSeconds(whole=4.0, event_loop=0.0)}
    return Window(calls=calls, spent=spent, start=10.0, stop=14.0)


def test_figures_are_of_the_measured_stream_and_what_runs_beside_has_its_own() -> None:
    case = replace(CASE, beside=replace(CASE.stream, clients=1))
    told = figures(case, window([9, 10, 11, 12, 13, 14.5], [9, 12]))
    assert told["requests/s"] == 1
    assert told["beside: requests/s"] == pytest.approx(1 / 3)
    assert told["worker: CPU ms/request"] == 1000
    with pytest.raises(LoadFailed, match="texts of 5 tokens: no answer in the window"):
        figures(case, window([9], [11]))
    assert figures(case, window([11, 12], [9]))["beside: requests/s"] == 0


def test_a_server_ends_with_all_that_it_started() -> None:
    """Its processes are known by name while it runs, its time to ready and its memory too."""
    with started("fake", fake("helper")) as running:
        assert len(running.pids) == 2
        assert running.seconds > 0
        assert all(value > 1 for value in running.rest.values())
    assert not any(map(is_running, running.pids.values()))


def test_a_server_that_ends_before_it_is_ready_is_named_with_the_end_of_its_log() -> None:
    program = "print('the reason'); print(' - leaked type x'); raise SystemExit(3)"
    launch = Launch(programs={"broken": [sys.executable, "-c", program]}, url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SystemExit, match=r"side: broken ended with 3\nthe reason\n\("), started("side", launch):
        pass


Asked = list[tuple[str, str, int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the clients of a run ask: case, server and round. They answer without sending anything."""
    seen: Asked = []

    def turn(row: Row, of: Case, server: ReadyServer, seconds: float, scale: str, number: int) -> dict[str, float]:
        assert all(map(is_running, server.pids.values()))
        seen.append((of.name, server.url, number))
        return {"requests/s": 5.0, "tokens/s": 9e9}

    monkeypatch.setattr(run, "turn", turn)
    monkeypatch.setattr(run, "reference", lambda row, folder: [np.array([[5, 1]]), np.array([[9, 1]])])
    monkeypatch.setattr(run.products, "PRODUCT", (64, 32, 32))
    return seen


def options(**changes: Any) -> run.RunOptions:
    return run.RunOptions(**{"scale": "small", "rounds": 2, "seconds": 1.0, "cores": [0], "sides": []} | changes)


def test_sides_are_loaded_together_and_asked_in_turns(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    """Backwards in every other round; a peer that does not start is absent with its reason. Results come by rounds."""
    broken = replace(fake("rows"), programs={"broken": ["false"]})
    sides = {OURS: fake("rows"), "broken": broken, VLLM: fake("rows")}
    monkeypatch.setattr(run, "launches", lambda row, cores: sides)
    row = replace(ROW, cases=(CASE, replace(CASE, name="more")))
    first, last = run.measured(row, options())
    ours, theirs = sides[OURS].url, sides[VLLM].url
    assert asked == [(case, url, 0) for case in ("2 clients", "more") for url in (ours, theirs)] + [
        (case, url, 1) for case in ("2 clients", "more") for url in (theirs, ours)
    ]
    assert [result["settings"]["rounds"] for result in (first, last)] == [1, 2]
    assert last["absent"] == {"broken": "fake, broken: broken ended with 1"}
    assert set(last["cold start, s"]) == {OURS, VLLM}
    assert last["agreement"][VLLM][answers.REFERENCE]["least cosine"] == pytest.approx(1)
    case, _ = last["cases"]
    assert list(case["sides"]) == [OURS, VLLM, ALONE]
    limit = case["sides"][ALONE]["tokens/s"]["median"]  # of products of a few microseconds; no token is as cheap
    assert 1e3 < limit < 9e9
    assert case["sides"][VLLM][SHARE]["lower"] > 100
    assert case["ours_over"][VLLM]["requests/s"]["median"] == 1
    assert str(ROOT) not in json.dumps(last)


def test_the_clients_run_in_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They know a row by its name. What they take of the server is told beside their figures."""
    row = replace(rows("tiny")["short-texts"], cases=rows("tiny")["short-texts"].cases[:1])
    with started("fake", fake("rows")) as running:
        figures = run.turn(row, row.cases[0], running, 0.5, "tiny", 0)
    assert figures["requests/s"] > 0
    assert figures["server: MiB at rest"] > 1
    assert figures["server: peak MiB"] > 1
    broken = ReadyServer(url="http://127.0.0.1:1", pids={}, seconds=0, rest={})
    with pytest.raises(SystemExit, match="short-texts, 16 clients: the clients ended with 1"):
        run.turn(row, row.cases[0], broken, 0.5, "tiny", 0)


def test_rows_of_an_answer_come_in_the_order_of_the_texts(server: ReadyServer) -> None:
    """Whatever order the server gives them in; other counts of tokens are an error."""
    texts = ["a b c", "a"]
    with urlopen(f"{server.url}/v1/embeddings", body("dense", "fake", texts)) as reply:
        answer = reply.read()
    assert [rows.tolist() for rows in rows_of("dense", answer, [5, 3])] == [[[5, 1]], [[3, 1]]]
    with pytest.raises(ValueError, match="have 9 tokens, and the server counted 8"):
        rows_of("dense", answer, [5, 4])


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_a_server_has_seen_no_text_that_counts(row: Row) -> None:
    """Texts differ between rounds, cases and streams, and from those that are compared: vLLM keeps what it computed."""
    chosen = [seed for number in range(3) for case in row.cases for seed in seeds(row, case, number)]
    assert len({*chosen, COMPARED}) == len(chosen) + 1
