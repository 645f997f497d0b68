"""Tiny models for tests of the worker: written to disk as transformers writes them, and asked without services."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from gpu_worker.device.placement import Placement
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model import execution
from gpu_worker.model.encoder.encoder import positions_of, uncounted_id_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.verify.gate import Reference, take_reference
from gpu_worker.model.verify.probes import Probes
from gpu_worker.repository.recipe import WeightsOf
from gpu_worker.repository.static_format import Queries
from gpu_worker.schedule.interface import JobSlice
from harness.random_models import synthetic
from shared.jobs import Classify, Encode, Job, JobResult, RaggedTokens, Score
from shared.vectors import DataType, Layout, OutputKind, ScoringMethod

CPU = Placement(device=torch.device("cpu"), dtype=torch.float32)
DENSE, SPARSE, MULTI = OutputKind.DENSE, OutputKind.SPARSE, OutputKind.MULTI_VECTOR
NAMES = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "mask_token": "[MASK]",
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}


def random_ids(lengths: Sequence[int], seed: int = 0, vocabulary: int = 900) -> list[list[int]]:
    """Texts of ordinary token ids."""
    generator = np.random.default_rng(seed)
    return [generator.integers(10, vocabulary, length).tolist() for length in lengths]


def unit_rows(count: int, width: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Random rows [count, width] of unit length."""
    drawn = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=1).to(dtype)


def tokens(*lengths: int, seed: int = 0) -> RaggedTokens:
    return RaggedTokens.of(random_ids(lengths, seed))


def encode(*outputs: OutputKind, **options: Any) -> Encode:
    return Encode(outputs=frozenset(outputs), **({"normalize": True, "normalize_tokens": True} | options))


def raw(*outputs: OutputKind, **options: Any) -> Encode:
    """Vectors as the heads give them."""
    return encode(*outputs, normalize=False, normalize_tokens=False, **options)


def score(method: ScoringMethod, queries: int, layout: Layout = Layout.MATRIX, **options: Any) -> Score:
    return Score(method=method, layout=layout, queries=queries, **({"unit_rows": True, "mean": False} | options))


def run(engine: ModelEngine, jobs: Sequence[Job], width: int | None = None) -> list[JobResult]:
    """All jobs in one step, or `width` units of each a step."""
    progresses = [engine.open(job) for job in jobs]
    longest = max(len(each.costs) for each in progresses)
    for start in range(0, longest, width or longest):
        stop = start + (width or longest)
        engine.launch(
            [
                JobSlice(job=each, start=start, stop=min(stop, len(each.costs)))
                for each in progresses
                if start < len(each.costs)
            ]
        ).collect()
    return [each.result() for each in progresses]


def ask(engine: ModelEngine, work: Encode | Score | Classify, texts: Sequence[Sequence[int]], **job: Any) -> JobResult:
    """One job over texts of token ids, in one step."""
    return run(engine, [Job(id=1, work=work, tokens=RaggedTokens.of(texts), **job)])[0]


def dense_rows(result: JobResult) -> np.ndarray:
    """[S, dimensions] float32."""
    assert result.dense is not None
    return np.frombuffer(result.dense.data, dtype="<f4").reshape(-1, result.dense.dimensions)


def token_rows(result: JobResult) -> list[np.ndarray]:
    """[rows, dimensions] float32, one a text."""
    assert result.tokens is not None
    rows = np.frombuffer(result.tokens.data, dtype="<f4").reshape(-1, result.tokens.dimensions)
    return np.split(rows, np.cumsum(result.row_lengths)[:-1])


def sparse_rows(result: JobResult, vocabulary: int = 1000) -> np.ndarray:
    """[S, vocabulary] float32, zeros where a vector has no weight."""
    assert result.sparse is not None
    rows = np.zeros((len(result.sparse.lengths), vocabulary), dtype=np.float32)
    text = np.repeat(np.arange(len(rows)), result.sparse.lengths)
    rows[text, np.frombuffer(result.sparse.indices, dtype="<i4")] = np.frombuffer(result.sparse.values, dtype="<f4")
    return rows


def scores(result: JobResult, columns: int = 1) -> np.ndarray:
    """[.., columns] float32 scores or logits."""
    return np.frombuffer(result.scores, dtype="<f4").reshape(-1, columns)


def ids_of(model: Model | Queries, texts: Sequence[str]) -> list[list[int]]:
    """Token ids as a frontend makes them."""
    reader = Tokenizer.from_buffer(model.tokenizer.content)
    return [encoding.ids for encoding in reader.encode_batch(texts)]


def embed(path: Path, texts: list[str]) -> np.ndarray:
    """Dense rows of texts by the repository at `path`, normalised as its files say, without services."""
    return rows(load(str(path), CPU), texts)


def rows(model: Model, texts: list[str]) -> np.ndarray:
    """Those of a model that is loaded."""
    assert model.recipe.dense is not None
    work = encode(DENSE, normalize=model.recipe.dense.normalize)
    return dense_rows(ask(ModelEngine(model), work, ids_of(model, texts)))


def referee(model: Any, unattended: bool = False) -> Reference:
    """Takes the model's own run of the probes, then makes it run packed."""
    uncounted = uncounted_id_of(model)
    special = () if uncounted is None else (uncounted,)
    probes = Probes.of(model.config, positions_of(model.config, uncounted), special, unattended=unattended)
    reference = take_reference(model, probes)
    execution.make_packed(model)
    return reference


def reader(**names: Any) -> PreTrainedTokenizerFast:
    """The tokenizer of the synthetic models as transformers has it; two of its words are "yes" and "no"."""
    description = json.loads(synthetic.tokenizer(1000).content)
    vocabulary = description["model"]["vocab"]
    for word, place in (("yes", "w800"), ("no", "w801")):
        vocabulary[word] = vocabulary.pop(place)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(description)), **(NAMES | names))


def write_encoder(folder: Path, name: str, weights_of: WeightsOf = "encoder", labels: int = 0, **saving: Any) -> Any:
    """Writes a shape's transformers class with seeded weights, rounded to bfloat16, and a tokenizer; returns it."""
    config, _ = synthetic.shape_of(name)
    if labels:
        config.num_labels = labels
    model = synthetic.build(config, weights_of, CPU).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    model.save_pretrained(folder, **saving)
    reader().save_pretrained(folder)
    return model


def split_weights(folder: Path, suffix: str) -> None:
    """Puts the weights of model.safetensors into three files of a suffix with their index, as transformers names them.

    A tensor's file is its place in the alphabet modulo three; what a head reads may lie in any of them.
    """
    whole = folder / "model.safetensors"
    stem = "model" if suffix == ".safetensors" else "pytorch_model"
    tensors, shards = load_file(whole), {}
    whole.unlink()
    for part in range(3):
        shard = folder / f"{stem}-0000{part + 1}-of-00003{suffix}"
        held = {name: tensors[name] for name in sorted(tensors)[part::3]}
        if suffix == ".safetensors":
            save_file(held, shard, metadata={"format": "pt"})
        else:
            torch.save(held, shard)
        shards |= dict.fromkeys(held, shard.name)
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))


def write_json(folder: Path, **files: Any) -> Path:
    """Files by name, `__` for a folder; strings are written as they are."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def listed(*kinds: str) -> list[dict[str, Any]]:
    """Entries of a modules.json, one behind the other; the first module lies in the folder itself."""
    return [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]


def write_pooled(folder: Path, pooling: str = "mean", **files: Any) -> Path:
    """The modules of an encoder whose 64 numbers a token are pooled, beside other `files`."""
    config = {"pooling_mode": pooling, "embedding_dimension": 64}
    return write_json(folder, modules=listed("Transformer", "Pooling"), **{"1_Pooling__config": config}, **files)


def assert_as_the_reference(folder: Path, texts: list[str]) -> np.ndarray:
    """Rows of texts are sentence-transformers' within 2e-5 of their largest number; returns its."""
    from sentence_transformers import SentenceTransformer  # seconds to import, and few ask

    expected: np.ndarray = SentenceTransformer(str(folder), device="cpu").encode(texts)
    assert np.abs(embed(folder, texts) - expected).max() < 2e-5 * max(1.0, float(np.abs(expected).max()))
    return expected


def assert_same(ours: JobResult, theirs: JobResult, data_type: DataType = DataType.FLOAT32) -> None:
    """Every vector, row length and score of two results."""
    assert ours.row_lengths == theirs.row_lengths
    assert ours.token_ids == theirs.token_ids
    for mine, other in ((ours.dense, theirs.dense), (ours.tokens, theirs.tokens)):
        assert (mine is None) == (other is None)
        if mine is None or other is None:
            continue
        assert mine.dimensions == other.dimensions
        kind = np.int8 if data_type is DataType.INT8 else np.float32
        a, b = (np.frombuffer(each.data, dtype=kind).astype(np.float64) for each in (mine, other))
        assert np.abs(a - b).max() <= (1 if data_type is DataType.INT8 else 1e-6)
    assert (ours.sparse is None) == (theirs.sparse is None)
    if ours.sparse is not None:
        assert np.abs(sparse_rows(ours) - sparse_rows(theirs)).max() <= 4e-6  # products of states of no unit length
    assert np.allclose(scores(ours), scores(theirs), atol=1e-5)
