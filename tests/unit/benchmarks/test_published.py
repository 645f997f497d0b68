"""The published tables: what is asked, and who answers. No vLLM: fakes over HTTP, and our own engine."""

import asyncio
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

from benchmarks.__main__ import parser
from benchmarks.benchmark import ALONE, SHARE
from benchmarks.load.generator import Window
from benchmarks.load.loops import Call, LoadFailed
from benchmarks.load.processor import CpuSeconds, is_running
from benchmarks.load.target import HttpTarget, texts_of
from benchmarks.machine import ROOT
from benchmarks.peers.process import free_port
from benchmarks.published import model, page, run, servers
from benchmarks.published.driver import COMPARED, body, drive, figures, rows_of, seeds
from benchmarks.published.rows import OURS, VLLM, Case, Row, rows
from benchmarks.published.servers import Launch, ReadyServer, started
from benchmarks.workloads import INSTRUCTED
from harness.random_models import synthetic
from support.published import CASE, ROW, fake


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MODELS", tmp_path)
    monkeypatch.setattr(model, "MODELS", tmp_path)


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


def test_prompts_of_token_rows_repeat_three_words_and_differ_between_requests() -> None:
    """A prefix cache would answer for prompts that it has seen. Prompts of a request have nothing in common, or the
    shorter ones are the beginnings of the longer ones."""
    apart, alike = (texts_of(case.stream.workload, 1) for case in rows()["token-embeddings"].cases)
    for requests in (apart, alike):
        assert [len(texts) for texts in requests] == [16] * 64
        prompts = [text.split() for texts in requests for text in texts]
        assert all(words == (words[:3] * len(words))[: len(words)] for words in prompts)
    assert len({tuple(text.split()[:3]) for texts in apart for text in texts}) > 0.99 * 64 * 16
    assert all(longest.startswith(text) for *texts, longest in alike for text in texts)
    assert len({texts[-1] for texts in alike}) == 64


def test_prompts_of_the_burst_have_an_instruction_of_21_tokens() -> None:
    """With [CLS]; the reference leaves out as many as our loader does, by the mark in the text."""
    (case,) = rows()["instruct-burst"].cases
    tokenizer = Tokenizer.from_str(synthetic.tokenizer(30_000).content.decode())
    prompts = [text for (text,) in texts_of(case.stream.workload, 1)]
    befores = {text.partition(INSTRUCTED)[0] + INSTRUCTED for text in prompts}
    assert [len(tokenizer.encode(before).ids) - 1 for before in befores] == [21]
    assert len(set(prompts)) == len(prompts) == 500


def test_the_short_texts_are_asked_alone_and_beside_long_ones() -> None:
    """The same short texts; the long ones all differ."""
    alone, *busy = rows()["short-beside-long"].cases
    for case, tokens in zip(busy, (4096, 8192), strict=True):
        assert alone.stream == case.stream
        assert case.beside is not None
        long = [text for (text,) in texts_of(case.beside.workload, 2)]
        assert len(set(long)) == len(long) == 64
        assert all(len(text.split()) + 2 == tokens for text in long)


def test_rows_of_an_answer_come_in_the_order_of_the_texts(server: ReadyServer) -> None:
    """Whatever order the server gives them in; other counts of tokens are an error."""
    texts = ["a b c", "a"]
    with urlopen(f"{server.url}/v1/embeddings", body("dense", "fake", texts)) as reply:
        answer = reply.read()
    assert [rows.tolist() for rows in rows_of("dense", answer, [5, 3])] == [[[5, 1]], [[3, 1]]]
    with pytest.raises(ValueError, match="have 9 tokens, and the server counted 8"):
        rows_of("dense", answer, [5, 4])


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


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_a_server_has_seen_no_text_that_counts(row: Row) -> None:
    """Texts differ between rounds, cases and streams, and from those that are compared: vLLM keeps what it computed."""
    chosen = [seed for number in range(3) for case in row.cases for seed in seeds(row, case, number)]
    assert len({*chosen, COMPARED}) == len(chosen) + 1


async def test_the_call_that_checks_a_server_has_texts_that_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what it tells the server is no text that counts."""
    sent: list[bytes] = []

    async def post(self: HttpTarget, body: bytes) -> str:
        sent.append(body)
        return "OK"

    monkeypatch.setattr(HttpTarget, "_post", post)
    case = replace(CASE, stream=replace(CASE.stream, requests=2))
    await drive(ROW, case, "http://nowhere", 0.5, {}, number=1)
    first, *counted = sent
    assert json.loads(first)["input"] == texts_of(CASE.stream.workload, COMPARED)[0]
    expected = texts_of(CASE.stream.workload, *seeds(ROW, CASE, 1))
    assert [json.loads(body)["input"] for body in counted] == expected
    assert first not in counted


@pytest.mark.parametrize("reconnecting", [True, False])
def test_the_published_client_has_a_connection_a_request(server: ReadyServer, reconnecting: bool) -> None:
    """Others keep theirs."""
    case = replace(CASE, stream=replace(CASE.stream, requests=20))
    asyncio.run(drive(replace(ROW, reconnecting=reconnecting), case, server.url, 0.5, {}))
    with urlopen(f"{server.url}/health") as reply:
        connections = json.loads(reply.read())["connections"]
    assert (connections > 20) == reconnecting


def window(measured: list[float], beside: list[float]) -> Window:
    calls = [[Call(due=end - 0.5, ended=end, status="OK", request=0) for end in ends] for ends in (measured, beside)]
    spent = {"worker": CpuSeconds(whole=4.0, event_loop=0.0)}
    return Window(calls=calls, spent=spent, start=10.0, stop=14.0)


def test_figures_are_of_the_measured_stream_and_what_runs_beside_has_its_own() -> None:
    """CPU is of everything, over the measured requests."""
    case = replace(CASE, beside=replace(CASE.stream, clients=1))
    told = figures(case, window([9, 10, 11, 12, 13, 14.5], [9, 12]))
    assert told["requests/s"] == 1
    assert told["beside: requests/s"] == pytest.approx(1 / 3)
    assert told["worker: CPU ms/request"] == 1000
    with pytest.raises(LoadFailed, match="texts of 5 tokens: no answer in the window"):
        figures(case, window([9], [11]))
    assert figures(case, window([11, 12], [9]))["beside: requests/s"] == 0


def test_a_call_that_outlasts_the_window_counts_where_latency_is_measured() -> None:
    """It is the slowest, and perhaps the only one; elsewhere it counts where no other does."""
    slow = Call(due=9.5, ended=20.0, status="OK", request=0)
    outlasted = replace(window([], []), calls=[[slow]])
    assert figures(CASE, outlasted, latency=True)["p99 ms"] == 10_500
    assert figures(CASE, outlasted)["p99 ms"] == 10_500


def test_a_server_ends_with_all_that_it_started() -> None:
    """Its processes are known by name while it runs."""
    with started("fake", fake("helper")) as running:
        assert len(running.pids) == 2
    assert not any(map(is_running, running.pids.values()))


def test_a_server_that_ends_before_it_is_ready_is_named_with_the_end_of_its_log() -> None:
    """The last lines say why."""
    program = "print('the reason'); raise SystemExit(3)"
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
    monkeypatch.setattr(run.our_kernels, "PRODUCT", (64, 32, 32))
    return seen


def options(**changes: Any) -> run.RunOptions:
    return run.RunOptions(**{"scale": "small", "rounds": 2, "seconds": 1.0, "cores": [0]} | changes)


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
    assert last["agreement"][VLLM][model.REFERENCE]["least cosine"] == pytest.approx(1)
    case, _ = last["cases"]
    assert list(case["sides"]) == [OURS, VLLM, ALONE]
    limit = case["sides"][ALONE]["tokens/s"]["median"]  # of products of a few microseconds; no token is as cheap
    assert 1e3 < limit < 9e9
    assert case["sides"][VLLM][SHARE]["lower"] > 100
    assert case["ours_over"][VLLM]["requests/s"]["median"] == 1
    assert str(ROOT) not in json.dumps(last)


def test_a_case_that_a_peer_fails_leaves_it_out_there_and_ours_ends_the_row(
    monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    """The peer's other cases are kept."""
    sides = {OURS: fake("rows"), VLLM: fake("rows")}
    monkeypatch.setattr(run, "launches", lambda row, cores: sides)
    whole, failing = run.turn, {sides[VLLM].url}

    def turn(row: Row, of: Case, server: ReadyServer, *how: Any) -> dict[str, float]:
        if of.name == "huge" and server.url in failing:
            sys.exit("huge: the clients ended with 1")
        return whole(row, of, server, *how)

    monkeypatch.setattr(run, "turn", turn)
    row = replace(ROW, cases=(CASE, replace(CASE, name="huge")))
    (result,) = run.measured(row, options(rounds=1))
    assert [list(case["sides"]) for case in result["cases"]] == [[OURS, VLLM, ALONE], [OURS, ALONE]]
    assert result["absent"] == {f"{VLLM}, huge": "huge: the clients ended with 1"}
    failing.add(sides[OURS].url)
    with pytest.raises(SystemExit, match="the clients ended with 1"):
        next(run.measured(row, options(rounds=1)))


def test_the_clients_run_in_a_process_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """They know a row by its name. What they take of the server is told beside their figures."""
    row = replace(rows("tiny")["short-texts"], cases=rows("tiny")["short-texts"].cases[:1])
    with started("fake", fake("rows")) as running:
        figures = run.turn(row, row.cases[0], running, 0.5, "tiny", 0)
    assert figures["requests/s"] > 0
    assert figures["server: peak MiB"] > 1
    broken = ReadyServer(url="http://127.0.0.1:1", pids={})
    with pytest.raises(SystemExit, match="short-texts, 16 clients: the clients ended with 1"):
        run.turn(row, row.cases[0], broken, 0.5, "tiny", 0)


def test_a_row_that_fails_is_told_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that does not start ends its row; a signal ends everything."""

    def measured(row: Row, options: run.RunOptions) -> Iterator[dict[str, Any]]:
        if row.name == "dense":
            sys.exit("ours was not ready")
        if row.name == "clients":
            raise ValueError("the texts have 9 tokens")
        return iter([{"says": row.says, "cases": [], "rounds": options.rounds}])

    monkeypatch.setattr(run, "measured", measured)
    names = [word for name in ("dense", "clients", "short-texts") for word in ("--row", name)]
    arguments = parser().parse_args(["published", *names, "--rounds", "2", "--out", str(tmp_path)])
    assert run.main(arguments) == 1
    printed = capsys.readouterr().err
    assert "dense: ours was not ready" in printed
    assert "clients: ValueError" in printed
    assert [path.name for path in tmp_path.glob("*.json")] == ["short-texts.json"]
    assert json.loads((tmp_path / "short-texts.json").read_text())["rounds"] == 2
    monkeypatch.setattr(run, "measured", lambda *_: sys.exit(143))
    with pytest.raises(SystemExit, match="143"):
        run.main(arguments)


@pytest.mark.parametrize(
    ("name", "figure", "best"), [("dense", "requests/s", "9"), ("short-beside-long", "p99 ms", "4")]
)
def test_a_line_compares_with_the_best_setting_of_vllm(
    name: str, figure: str, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The most requests a second, or the least latency; where and how a row was measured stands below the table."""
    spreads = {figure: {"median": 1.0, "lower": 1.0, "upper": 1.0} for figure in ("requests/s", "p50 ms", "p99 ms")}
    values = {OURS: 8.0, VLLM: 4.0, f"{VLLM}, others": 9.0}
    sides = {side: spreads | {figure: {"median": value}} for side, value in values.items()}
    over = {side: spreads | {figure: {"median": 2.0, "lower": 2.0, "upper": 2.0}} for side in values if side != OURS}
    result = {
        "says": "texts.",
        "agreement": {side: {model.REFERENCE: {"least cosine": 0.999}} for side in values},
        "cases": [{"case": "alone", "ours": OURS, "sides": sides, "ours_over": over}],
        "machine": {"cores": 4, "processor": "Zen 5", "commit": "abc"},
        "settings": {"threads": 2, "rounds": 3, "seconds": 9.0, "requests": {"alone": 0}, "flags": {VLLM: "--a"}},
        "peers": {"vllm": {"vllm": "1.2"}},
    }
    monkeypatch.setattr(page, "read", lambda wanted: result if wanted == f"published/{name}" else {})
    lines = page.summary().splitlines()
    assert f"| {name}, alone | 8 {figure} | {best} {figure} | 2 |" in lines[2]
    assert "| 0.99900 / 0.99900 |" in lines[2]
    assert "Medians (quartiles), measured with 2 of 4 cores of Zen 5; vllm 1.2." in lines
    assert lines[-1] == f"- **{name}**: texts. 3 rounds of 9 s a case; commit abc; {VLLM}: `--a`."
    monkeypatch.setattr(page, "read", lambda _: {})
    assert page.summary() == page.NO_RESULT
