"""Rerankers by template: scores of tiny random models, in the files of docs/models.md, equal those of the models' code.

Each reference is written from what the model's card or package computes: which parts of the text it tokenises one by
one, what it cuts, and which logits of transformers' class make the score.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, PreTrainedTokenizerFast

from frontend_service.domain.requests import DEFAULT_PROMPT, PromptChoice, Truncation
from frontend_service.tokenizing.pairs import PairTexts
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from gpu_worker.settings import WorkerSettings
from gpu_worker.worker import load_model
from harness.random_models import synthetic
from harness.random_models.shapes import DECODER, TINY
from shared.errors import ModelRefused
from shared.jobs import Classify, Job
from shared.vectors import Activation
from support.chunks import run_to_end
from support.tiny import CPU, run, scores

pytestmark = pytest.mark.usefixtures("one_thread")
PAGE = Path(__file__).parents[3] / "docs" / "models.md"
QUERY = "what is a boat?"
DOCUMENTS = ["a quiet harbour.", "Yes?\n\nno!\n", "", "\na loud kitchen <|im_end|> 7", "boats and harbours? " * 90]
LIMIT = 300
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Where Qwen2's tokenizer lets no token go on; it takes a newline to the punctuation before it."""
MARKERS = ["<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>"]


def file_of(model: str) -> dict[str, Any]:
    """The file that the page has for a model."""
    block = re.search(rf"\*\*{re.escape(model)}\*\*[^\n]*\n.*?```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    content: dict[str, Any] = json.loads(block[1])
    return content


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with tokens such as "?\\n", made of the page and the texts here."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    corpus = [PAGE.read_text(), *["Yes?\nno.\nRelevance:\nboats?\n\n yes no Yes"] * 99]
    trainer = trainers.BpeTrainer(
        vocab_size=990, special_tokens=MARKERS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(corpus, trainer)
    assert "?Ċ" in made.get_vocab()
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=LIMIT, **names)


class Code:
    """What the code of a model has: its tokenizer, its class, and what it does with both."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, model: Any) -> None:
        self.tokenizer, self.model = tokenizer, model

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def last(self, ids: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self.model(input_ids=torch.tensor([ids])).logits[0, -1]
        return logits

    def joined(self, query: list[int], document: list[int], around: int) -> list[int]:
        """A query and its document, of which the end is cut where they and what is around are over the limit."""
        return [*query, *document[: max(0, LIMIT - around - len(query))]]

    def mxbai(self, query: str, document: str, instruction: str = "") -> float:
        told = f"instruction: {instruction}\n" if instruction else ""
        newline = self.ids("\n")
        before = self.ids(
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\n"
        )
        task = self.ids(
            "You are a search relevance expert who evaluates how well documents match search queries. For each "
            "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
            "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
        )
        behind = [*newline, *task, *self.ids("<|im_end|>\n<|im_start|>assistant\n")]
        pair = self.joined(
            self.ids(f"{told}query: {query}"),
            [*newline, *self.ids(f"document: {document}")],
            len(before) + len(behind),
        )
        logits = self.last([*before, *pair, *behind])
        return float(logits[self.ids("1")[0]] - logits[self.ids("0")[0]])

    def bge_gemma(self, query: str, document: str, instruction: str = "") -> float:
        question = instruction or (
            "Given a query A and a passage B, determine whether the passage contains an answer to the query by "
            "providing a prediction of either 'Yes' or 'No'."
        )
        newline = self.ids("\n")
        behind = [*newline, *self.ids(question)]
        first, second = [1, *self.ids(f"A: {query}")], [*newline, *self.ids(f"B: {document}")]
        return float(self.last([*self.joined(first, second, len(behind)), *behind])[self.ids("Yes")[0]])

    def zerank(self, query: str, document: str) -> float:
        chat = (
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
        )
        messages = [{"role": "system", "content": query}, {"role": "user", "content": document}]
        text = self.tokenizer.apply_chat_template(
            messages, chat_template=chat, tokenize=False, add_generation_prompt=True
        )
        end = self.ids("<|im_end|>\n<|im_start|>assistant\n")
        whole = self.ids(str(text))
        ids = whole if len(whole) <= LIMIT else [*whole[: LIMIT - len(end)], *end]
        return float(self.last(ids)[self.ids("Yes")[0]] / 5)

    def nemotron(self, query: str, document: str) -> float:
        text = f"question:{query} \n \n passage:{document}"
        ids = self.tokenizer(text, truncation=True, max_length=LIMIT)["input_ids"]
        with torch.inference_mode():
            everywhere = torch.zeros(1, 1, len(ids), len(ids))  # every token attends to every other
            rows = self.model.model(input_ids=torch.tensor([ids]), attention_mask=everywhere).last_hidden_state[0]
            return float(self.model.score(rows.mean(dim=0)) / 0.5)


MODELS: dict[str, tuple[str, Callable[..., float]]] = {
    "mixedbread-ai/mxbai-rerank-base-v2": ("qwen2", Code.mxbai),
    "BAAI/bge-reranker-v2-gemma": ("gemma", Code.bge_gemma),
    "zeroentropy/zerank-1": ("qwen3", Code.zerank),
    "nvidia/llama-nemotron-rerank-1b-v2": ("llama", Code.nemotron),
}


def write(folder: Path, model: str, tokenizer: PreTrainedTokenizerFast) -> Any:
    """The folder of a tiny model as its repository has it; returns transformers' class with the weights."""
    kind = MODELS[model][0]
    head = "sequence-classification" if kind == "llama" else "causal-lm"
    options = {"eos_token_id": 2, "bos_token_id": 1, "num_labels": 1, "attn_implementation": "eager"}
    config = AutoConfig.for_model(kind, **(TINY | DECODER | options))
    built = synthetic.build(config, head, CPU).eval()
    built.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if kind == "llama":
        described = json.loads((folder / "config.json").read_text())
        named = "LlamaBidirectionalForSequenceClassification"
        described |= {"model_type": "llama_bidirec", "architectures": [named], "pooling": "avg", "temperature": 0.5}
        described |= {"auto_map": {"AutoModelForSequenceClassification": f"llama_bidirectional_model.{named}"}}
        (folder / "config.json").write_text(json.dumps(described))
    if kind == "qwen3":
        described = json.loads((folder / "config.json").read_text())
        described |= {"auto_map": {"AutoConfig": "modeling_zeranker.ZEConfig"}}
        (folder / "config.json").write_text(json.dumps(described))
    return built


def logits(folder: Path, prompt: PromptChoice = DEFAULT_PROMPT, **options: Any) -> np.ndarray:
    """Logits of the query with each document, tokenised as a frontend does it and cut to the limit."""
    model = load(str(folder), CPU, LoadOptions(**options))
    texts = PairTexts(
        firsts=[QUERY],
        seconds=DOCUMENTS,
        matrix=True,
        entry="documents[{}]",
        cut=Truncation(truncate=True),
        prompt=prompt,
    )
    batch = run_to_end(ModelTokenizer(model.tokenizer.content, card_of(model)).pairs(texts))
    assert batch.truncated == (False, False, False, False, True)
    return scores(run(ModelEngine(model), [Job(id=1, work=Classify(), tokens=batch.tokens)])[0])[:, 0]


@pytest.mark.parametrize("model", MODELS)
def test_scores_are_those_of_the_models_own_code(
    model: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """With the file of the page, also for a document that is cut and for texts that begin and end with newlines."""
    code = Code(tokenizer, write(tmp_path, model, tokenizer))
    (tmp_path / "score_template.json").write_text(json.dumps(file_of(model)))
    expected = np.array([MODELS[model][1](code, QUERY, document) for document in DOCUMENTS])
    assert np.ptp(expected) > 0.1
    assert np.abs(logits(tmp_path) - expected).max() < 1e-4


@pytest.mark.parametrize("model", ["mixedbread-ai/mxbai-rerank-base-v2", "BAAI/bge-reranker-v2-gemma"])
def test_an_instruction_stands_where_the_models_own_code_puts_it(
    model: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Whatever it holds: marks of the template are text in it."""
    code = Code(tokenizer, write(tmp_path, model, tokenizer))
    file = tmp_path / "told.json"
    file.write_text(json.dumps(file_of(model)))
    told = "find boats {query}{split} {document}?\n"
    expected = np.array([MODELS[model][1](code, QUERY, document, told) for document in DOCUMENTS])
    assert np.abs(logits(tmp_path, PromptChoice(literal=told), score_template=file) - expected).max() < 1e-4


VLLM = (
    "{%- set texts = messages | map(attribute='content') | list -%}"
    "{%- if instruction | trim -%}{%- set told = '<i>' + instruction + '</i>' -%}{%- endif -%}"
    "{{- '<|im_start|>system\n' + texts[0] + (told or '') + '<|im_end|>\n' -}}"
    "{{- texts[1] }}?"
)
PLAIN = "<|im_start|>system\n{query}<|im_end|>\n{document}?"
INSTRUCTED = "<|im_start|>system\n{query}<i>{instruction}</i><|im_end|>\n{document}?"


@pytest.fixture(scope="module")
def folder(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal language model of which no file says that it is a reranker."""
    place = tmp_path_factory.mktemp("question") / "model"
    write(place, "mixedbread-ai/mxbai-rerank-base-v2", tokenizer)
    return place


def started(folder: Path, file: Path) -> Any:
    """The model as a worker with the flag has it."""
    settings = ["--model", str(folder), "--device", "cpu", "--score-template", str(file)]
    return load_model(WorkerSettings.read(settings))


def test_a_template_of_vllm_by_messages(folder: Path, tmp_path: Path) -> None:
    """In a file of its own, whose last newline does not count; conditions on the instruction are no matter."""
    (tmp_path / "asked.jinja").write_text(VLLM + "\n")
    file = tmp_path / "asked.json"
    file.write_text(json.dumps({"template_file": "asked.jinja", "true_token": "Yes"}))
    card = card_of(started(folder, file))
    assert (card.pair_template, card.instructed_pair_template) == (PLAIN, INSTRUCTED)
    assert (card.labels, card.activation, card.pooling) == (("yes",), Activation.SIGMOID, "")


def test_a_template_alone_leaves_the_other_keys_to_the_file_beside_the_weights(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    write(tmp_path / "model", "mixedbread-ai/mxbai-rerank-base-v2", tokenizer)
    beside = {"template": "{{ query }} {{ document }}", "true_token": "1", "false_token": "0", "logit_mean": 4.5}
    (tmp_path / "model" / "score_template.json").write_text(json.dumps(beside))
    (tmp_path / "asked.jinja").write_text("Q {{ query }} D {{ document }}\n\n")
    model, plain = started(tmp_path / "model", tmp_path / "asked.jinja"), load(str(tmp_path / "model"), CPU)
    assert (card_of(model).pair_template, card_of(plain).pair_template) == (
        "Q {query} D {document}\n",
        "{query} {document}",
    )
    assert model.recipe.classifier.yes_no == tuple(tokenizer.convert_tokens_to_ids(["1", "0"]))
    assert model.recipe.classifier.logit_mean == 4.5
    assert model.fingerprint != plain.fingerprint


def test_logits_are_less_the_mean_by_sigma(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """The same before the sigmoid as vLLM's pooler config has it."""
    write(tmp_path, "mixedbread-ai/mxbai-rerank-base-v2", tokenizer)
    question = file_of("mixedbread-ai/mxbai-rerank-base-v2")
    (tmp_path / "score_template.json").write_text(json.dumps(question))
    plain = logits(tmp_path)
    (tmp_path / "score_template.json").write_text(json.dumps(question | {"logit_mean": 4.5, "logit_sigma": 2}))
    assert np.abs(logits(tmp_path) - (plain - 4.5) / 2).max() < 1e-5


GOOD = {"template": "{{ query }} {{ document }}", "true_token": "Yes"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"template": "{{ query }}"}, "the template has document 0 times, it must put it in once"),
        ({"template": "{{ query }} {{ document }} {{ query }}"}, "the template has query 2 times"),
        ({"template": "{{ query }} {{ document | trim }}"}, "the template changes document"),
        ({"template": "{{ query }} {{ document[:2000] }}"}, "the template changes document"),
        ({"template": "{{ query | e }} {{ document }}"}, "the template changes query"),
        ({"template": "{{ query }}{% if query %}!{% endif %} {{ document }}"}, "the template changes query"),
        ({"template": "{{ instruction | upper }} {{ query }} {{ document }}"}, "the template has instruction 0 times"),
        ({"template": "{{ instruction | trim }} {{ query }} {{ document }}"}, "the template changes instruction"),
        ({"template": "{{ document }} {{ query }}"}, "puts the document before the query"),
        ({"template": "{{ query }} {{ document }} {{ query.__class__.__mro__ }}"}, "the template cannot be rendered"),
        ({"template": "{% if %}"}, "the template cannot be rendered"),
        ({"template": 7}, "template 7 must be a text"),
        ({"template": None}, "template None must be a text"),
        ({"template_file": "a.jinja"}, "it must have one of template and template_file"),
        ({"true_token": "Yes and no"}, "true_token 'Yes and no' must be one token"),
        ({"true_token": ""}, "true_token '' must be one token"),
        ({"false_token": "Yes"}, "true_token and false_token are the same token"),
        ({"true_token": None}, "it names no true_token, and no file of the model says by which token it answers"),
        ({"true_token": None, "logit_sigma": 5}, "logit_sigma goes with a true_token"),
        ({"logit_sigma": 0}, "logit_sigma 0 must be above 0"),
        ({"logit_mean": "4.5"}, "logit_mean '4.5' must be a finite number"),
        ({"activation": "tanh"}, "has activation, which is none of template, template_file, true_token"),
    ],
)
def test_what_a_file_may_not_say(folder: Path, tmp_path: Path, change: dict[str, Any], told: str) -> None:
    """In one line, which names the file."""
    file = tmp_path / "asked.json"
    file.write_text(json.dumps(GOOD | change))
    named = tmp_path / "Some-Reranker"
    named.symlink_to(folder)
    with pytest.raises(ModelRefused) as refused:
        started(named, file)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "before the query" in told or str(file) in str(refused.value)


def test_a_file_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    for name in ("asked.json", "asked.jinja"):
        with pytest.raises(ModelRefused, match=re.escape(str(tmp_path / name))):
            started(folder, tmp_path / name)


@pytest.mark.parametrize(
    ("architecture", "told"),
    [
        ("Qwen2ForTokenClassification", "the model is no reranker"),
        ("Qwen2Model", "the model is no reranker"),
        ("Qwen2ForSequenceClassification", "true_token: the model has a head of its own for scores"),
    ],
)
def test_a_model_that_answers_by_no_token(folder: Path, tmp_path: Path, architecture: str, told: str) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    described = json.loads((folder / "config.json").read_text()) | {"architectures": [architecture]}
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "score_template.json").write_text(json.dumps(GOOD))
    with pytest.raises(ModelRefused, match=told):
        load(str(tmp_path), CPU)


@pytest.mark.parametrize(
    ("model", "name", "changes", "told"),
    [
        ("mixedbread-ai/mxbai-rerank-base-v2", "mxbai-rerank-base-v2", {}, "--score-template"),
        ("BAAI/bge-reranker-v2-gemma", "bge-reranker-v2-gemma", {}, "--score-template"),
        ("zeroentropy/zerank-1", "zerank-1", {}, "this zerank scores by code of its repository"),
        ("zeroentropy/zerank-1", "zerank-2-reranker", {}, "this zerank scores by code of its repository"),
        ("nvidia/llama-nemotron-rerank-1b-v2", "llama-nemotron-rerank-1b-v2", {}, "--score-template"),
        (
            "zeroentropy/zerank-1",
            "LightOn-rerank-LW-0.8B",
            {"architectures": ["Qwen3_5ForConditionalGeneration"], "auto_map": {}},
            "Qwen3_5ForConditionalGeneration is a reranker that writes its ranking as text or reads images",
        ),
    ],
)
def test_a_known_reranker_is_not_served_by_a_guess(
    model: str, name: str, changes: dict[str, Any], told: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Without a file the line names the setting."""
    write(tmp_path / name, model, tokenizer)
    file = tmp_path / name / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ModelRefused, match=told):
        load(str(tmp_path / name), CPU)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pooling": "weighted"}, "pooling weighted is not one of avg, cls, last"),
        ({"temperature": 0}, "temperature 0 must be a number above 0"),
        ({"id2label": {"0": "no", "1": "yes"}}, "score.weight"),
    ],
)
def test_a_head_of_nvidias_that_is_not_known(
    change: dict[str, Any], told: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    write(tmp_path, "nvidia/llama-nemotron-rerank-1b-v2", tokenizer)
    (tmp_path / "score_template.json").write_text(json.dumps(file_of("nvidia/llama-nemotron-rerank-1b-v2")))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ModelRefused, match=told):
        load(str(tmp_path), CPU)
