"""A model and a worker of a dozen lines; nothing here needs torch."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from frontend_service.domain.limits import ExpectedReply, Limits
from frontend_service.services.pipeline import Pipeline, ServedModel, Workers
from frontend_service.tokenizing.tokenizer import ModelTexts, ModelTokenizer
from shared.card import ModelCard
from shared.errors import UnknownModel, WorkerUnavailable
from shared.jobs import Classify, Job, JobResult, MaxSim, RaggedTokens, Rows, Score
from shared.vectors import OutputKind, ScoringMethod

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz", "query", "passage", ":"]


def card(**changes: object) -> ModelCard:
    values: dict[str, object] = {
        "id": "fake",
        "family": "bert",
        "outputs": (OutputKind.DENSE, OutputKind.MULTI_VECTOR),
        "methods": (ScoringMethod.DENSE, ScoringMethod.LATE_INTERACTION),
        "default_method": ScoringMethod.DENSE,
        "pooling": "mean",
        "dimensions": 8,
        "multi_vector_dimensions": 8,
        "normalizes": True,
        "max_tokens": 10,
        "vocabulary_size": len(WORDS),
        "dtype": "float32",
        "device": "cpu",
        "attention": "",
        "linear": "",
        "fingerprint": "f",
        "special_ids": tuple(map(WORDS.index, ("[CLS]", "[SEP]", "[PAD]"))),
    }
    return ModelCard(**values | changes)  # type: ignore[arg-type]


def tokenizer_json() -> bytes:
    """One token a word, [CLS] and [SEP] around; with a truncation and a padding that must not take effect."""
    vocab = {word: number for number, word in enumerate(WORDS)}
    special = {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    single.append({"SpecialToken": {"id": "[SEP]", "type_id": 0}})
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
    added = [
        {"id": vocab[name], "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for name in ("[CLS]", "[SEP]", "[PAD]")
    ]
    description = {
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_id": 0, "pad_type_id": 0}
        | {"pad_token": "[PAD]", "pad_to_multiple_of": None},
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special},
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
    }
    return json.dumps(description).encode()


class FakeWorker:
    """Remembers jobs; its scores are 1, 3, 3, 2 again and again."""

    def __init__(self, model_card: ModelCard) -> None:
        self.served = ServedModel(
            card=model_card,
            texts=ModelTexts(tokenizer=ModelTokenizer(tokenizer_json(), model_card)),
            queued_tokens=1000,
        )
        self.jobs: list[Job] = []
        self.is_gone = False

    def model(self, name: str) -> ServedModel:
        if name not in ("", *self.served.card.names):
            raise UnknownModel(f"no model is called {name!r}", field="model")
        return self.served

    def models(self) -> tuple[ServedModel, ...]:
        if self.is_gone:
            raise WorkerUnavailable("no worker")
        return (self.served,)

    async def run(self, model: ServedModel, job: Job, expected: ExpectedReply) -> JobResult:
        import numpy as np

        self.jobs.append(job)
        if isinstance(job.work, Score | MaxSim):
            count = int(np.prod(job.work.layout.shape(*_sides(job))))
            return JobResult(scores=np.resize(np.array([1, 3, 3, 2], dtype="<f4"), count).tobytes())
        if isinstance(job.work, Classify):
            labels = len(self.served.card.labels)
            ids = np.frombuffer(job.tokens.ids, dtype="<i4")
            scored = np.isin(ids, ids if job.work.token_id is None else [job.work.token_id])
            counts = np.add.reduceat(scored, job.tokens.offsets[:-1], dtype=np.int64)
            rows = int(counts.sum()) if job.work.tokens else len(job.tokens)
            logits = np.resize(np.array([1, 3, 3, 2], dtype="<f4"), rows * labels).tobytes()
            return JobResult(scores=logits, row_lengths=tuple(counts.tolist()) if job.work.tokens else ())
        if job.ranges is not None:  # each row tells its sequence's first token of text, its range, and the range's last
            ids, counts = np.frombuffer(job.tokens.ids, dtype="<i4"), job.ranges.counts
            first = np.repeat(ids[[start + 1 for start in job.tokens.offsets[:-1]]], counts)
            last = ids[np.repeat(job.tokens.offsets[:-1], counts) + job.ranges.stops - 1]
            numbers = np.stack([first, job.ranges.starts, job.ranges.stops, last], axis=1)
            rows = np.pad(numbers, ((0, 0), (0, 4))).astype("<f4")
            return JobResult(dense=Rows(dimensions=8, data=rows.tobytes()))
        return JobResult(dense=Rows(dimensions=8, data=b"\0" * 32 * len(job.tokens)))


def _sides(job: Job) -> tuple[int, int]:
    """Queries and documents of a job that scores."""
    if isinstance(job.work, Score):
        return job.work.queries, len(job.tokens) - job.work.queries
    assert isinstance(job.work, MaxSim)
    queries = job.work.queries
    return len(job.tokens if queries is None else queries.lengths), len(job.work.documents.lengths)


def pipeline_of(worker: Workers, limits: Limits | None = None, **options: Any) -> Pipeline:
    """The steps of requests to this worker."""
    return Pipeline(worker, limits or Limits(), ThreadPoolExecutor(1), ThreadPoolExecutor(1), **options)


def words_of(tokens: RaggedTokens) -> list[str]:
    """Each sequence in the words of the vocabulary."""
    ids = memoryview(tokens.ids).cast("i")
    return [" ".join(WORDS[number] for number in ids[start:stop]) for start, stop in pairwise(tokens.offsets)]


def service(limits: Limits | None = None, **changes: Any) -> tuple[Pipeline, FakeWorker]:
    """A worker of a model with these changes to its card, and the steps of requests to it."""
    worker = FakeWorker(card(**changes))
    return pipeline_of(worker, limits), worker
