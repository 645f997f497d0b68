"""The supported models: how each text architecture of the installed transformers is served. Writes docs/models.md.

`python -m gpu_worker.startup.supported_models`.

Each architecture is built tiny with seeded random weights, written to disk, and loaded as a user's model would be. The
gate at load decides how it runs.
"""

from shared.command import CommandParser, begin

if __name__ == "__main__":
    begin("worker")

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import CONFIG_MAPPING
from transformers import __version__ as transformers_version

from gpu_worker.device.placement import Placement
from gpu_worker.model.loading import load
from gpu_worker.model.quiet import quiet
from gpu_worker.model.verify.in_pieces import TWO_SIDED, UNPACKED, Cutting
from gpu_worker.random_models import miniature
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

PACKED, EQUAL_LENGTH, REFUSED = "packed", "equal length", "refused"
IN_PIECES = "in pieces"
CPU = Placement(device=torch.device("cpu"), dtype=torch.float32)
WIDEST = 160
"""Most letters of a reason in the table."""
PAGE = """# What runs how

Made by `make models` with transformers {version}: every model type whose bare model reads token ids and nothing else,
built tiny with seeded random weights, written to disk and loaded as any model is. What it says is the outcome of the
gate at load, which compares the run among other texts with what sentence-transformers runs, one text at a time: the
model's own attention by default, fed with what its own tokenizer class gives.

- **packed** ({packed}): all texts of a step in one run, end to end, without padding.
- **equal length** ({equal}): texts of one length in one run, through the model's own attention, without padding. Each
  length of a step is a run by itself, so a step of many lengths takes longer, as log and card (`notice`) tell.
- **refused** ({refused}): the reason is what the load says.

**Long texts** of {pieces} of them are computed in pieces, over several steps, with other texts in between
(`--chunk-tokens`). All others compute every text in one step. The table tells why, unless it is plain: a model whose
tokens attend to later tokens, or that does not run packed, needs the whole text at once.

A model of one of these types on disk may still come out otherwise: an option of its config may be one that does not run
packed, and its gate then says so. A family that chooses among near ties (experts, keys that an index picks) may choose
otherwise in the last bit among other texts, as it does in any batch of its own.

With some options PyTorch's fused attention, which transformers takes by default, and the one that is written out
compute two things: Falcon with `alibi`, Gemma with `use_bidirectional_attention`, Gemma 2's softcap under transformers
5.17. The default is served, and log and card (`notice`) say so. `tests/support/attention_options.py` lists all options
that are swept.

On a processor the layers of {whole} of them run whole by the worker's own kernels, where these are built: the table
tells the form by which they were recognised. The layers of all others run as transformers wrote them, with the kernels'
attention.

| model type | class | runs | long texts | whole layers on a processor | why not packed |
|---|---|---|---|---|---|
{rows}

## What a folder must hold

A folder is read as sentence-transformers 6.2 reads it. With a `modules.json` its modules run in their order, and one
that reads what none before it makes is refused. Without one, `sentence_bert_config.json`,
`config_sentence_transformers.json` and the folders of modules say nothing (the card's `notice` names them): an encoder
gives the mean of its tokens, a causal language model its last one. Refused, each in one line that names the file:

- a chat template without a `modules.json`, unless it asks about a query and a document: sentence-transformers puts
  every text into it, which is not done here. Take it away to embed texts as they are;
- weights inside of the encoder, in its embeddings, layers or norms, that its class in transformers does not take, such
  as those of `position_embedding_type: relative_key`: without them it would compute something else. All others that
  nothing uses (poolers, heads, other towers, layers beyond `num_hidden_layers`) are left out; the `notice` names them;
- quantised weights ([below](#quantised-checkpoints)); a number that is a text or a fraction; keys that
  sentence-transformers does not take;
- `requirements` of config_sentence_transformers.json that the installed packages do not meet;
- no tokenizer files, one that frontends could not open, special tokens beyond the model's embeddings, or fewer tokens
  than a quarter of them. Matrices are padded, so more rows than tokens are usual;
- `split_special_tokens`; a tokenizer's class that does in Python what its tokenizer.json does not say, as those that
  cut Japanese into words (both are compared at load, on texts with special tokens too);
- of `processing_kwargs` all but padding, `max_length`, options of a template, and `truncation`: with
  `truncation: false` a text may have as many tokens as the model has positions;
- a prompt, a marker or a pair's template that leaves no room for a token of a text.

The `notice` also tells BPE dropout, which is switched off, tokens of the tokenizer that the model has no embedding for
(a text with one is refused, by name), and a tokenizer to which ordinary text of any language is mostly unknown, as it
is to those of proteins.

## Quantised checkpoints

A checkpoint whose weights were quantised before it was published is refused, whatever its format is (fp8,
compressed-tensors, GPTQ, AWQ, bitsandbytes and so on). Its config.json has a `quantization_config`, which names the
format, or its safetensors hold weights in 8 bits or less, or packed. Serve the checkpoint that it was made from;
`--linear int8` rounds its layers at load.

## Static embeddings and Routers

**StaticEmbedding** (sentence-transformers' static models, model2vec) gives a text the mean of the rows that a table
has for its tokens, without special tokens. `modules.json` with StaticEmbedding first, Dense, LayerNorm and Normalize
behind it, or a folder as model2vec publishes it: `tokenizer.json`, `config.json`, and `model.safetensors` with
`embeddings` and, in newer ones, `mapping` and `weights`. Tokens that the vocabulary lacks count, as in
sentence-transformers; model2vec's own package leaves them out. A text may have what the tokenizer's `truncation`
says, else 8,192 tokens (`--max-tokens`). The worker serves it as any model, in float32 unless `--dtype` says
otherwise:

```
python -m gpu_worker --model minishlab/potion-base-8M
curl -s 127.0.0.1:8080/v1/embeddings -H 'content-type: application/json' -d '{{"input": "a quiet harbour"}}'
```

**SparseStaticEmbedding** gives each token id of a text its weight in a table, such as one of IDF: a sparse vector. A
text without a token is refused, here as in StaticEmbedding, where sentence-transformers gives zeros.

**Router** (once Asym) sends queries and documents different ways: texts with `input_type` QUERY and the queries of
Rerank and Score go the route of the task `query`, documents the other one. Texts without a kind go the model's
default route; a model without one refuses them, by the field `input_type`. A step computes both sides, and a Score
compares them. The card tells the way of queries (`query_route`), `--check` prints it and the tables. Both sides must
make vectors of one kind and width. Routers of cross-encoders and of late interaction are refused, and so are routes
that neither queries nor documents take. A Transformer that both sides share is loaded twice.

**Inference-free SPLADE** is a Router with a SparseStaticEmbedding for queries and SPLADE for documents. Frontends get
the table with the tokenizer, check it, and look queries up by themselves; documents, and the queries of Rerank and
Score, go through the worker. A frontend of a version without this is refused by such a worker:

```python
with Client("127.0.0.1:50051") as client:  # opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill
    query = client.embed("boats", output="sparse", input_type="query")  # {{id: weight}}, without the worker
    documents = client.embed(["a harbour"], output="sparse", input_type="document")
```

```
curl -s 127.0.0.1:8080/embed_sparse -H 'content-type: application/json' \\
  -d '{{"inputs": "boats", "input_type": "query"}}'
```

Refused, in one line that names the file: tables without their tensor, of another shape, of whole numbers, with
numbers that are not finite or weights below zero; a SparseStaticEmbedding whose `path` names a file elsewhere; more
or fewer weights than tokens; WeightedLayerPooling, which needs the states of all layers.

## Listwise rerankers

jina-reranker-v3 and v3.5 (`JinaForRanking`) read a query and many documents as one text, a block, so that a
document's score depends on the others beside it. The model's rows at a marker behind each document and behind the
query go through two layers (`projector.0`, `projector.2`), and scores are cosines, from -1 to 1. The code of the
repository is not run, and `--trust-remote-code` is not wanted: the class is transformers' Qwen3.

```
python -m gpu_worker --model jinaai/jina-reranker-v3
curl -s 127.0.0.1:8080/v1/rerank -H 'content-type: application/json' \\
  -d '{{"query": "boats", "documents": ["a quiet harbour", "a loud kitchen"]}}'
```

Rerank and Score take it by every API; the method is LISTWISE, the only one of such a model. `instruction` comes into
the text. A query may have 512 tokens and a document 2,048 (v3.5: 1,024 and 8,192), the card's `listwise` tells;
longer ones are refused unless `truncate` or `--auto-truncate` cuts them, which the model's own code always does.
Over HTTP a rerank of `documents` cuts, as Cohere does. Markers in the texts of callers are taken out.

A block has 125 documents at most, and ends where another one of the longest might not fit into the context. So a
rerank of many or long documents has several, computed with the query in each; the query is the mean of its vectors,
weighted by (1 + the best score of the block) / 2. A Score compares each query with all documents in blocks of its
own, or with PAIRS each query with one document alone. Equal documents may get different scores, by their places.

A block of long documents has 100,000 tokens and more: it is computed in pieces (`--chunk-tokens`), if its keys and
values fit into `--cache-megabytes`. Less memory, or `--max-tokens`, makes blocks smaller, which changes scores and
the fingerprint. Embed and Classify are refused. A frontend of a version without this is refused by such a worker.
Refused, in one line that names the file: a projector without a tensor or of another width, a tokenizer that lacks a
marker or splits it, another decoder than Qwen3.

## Adapters

A LoRA adapter as PEFT saves it (`adapter_config.json`, `adapter_model.safetensors`) is merged into its base at load and
then costs nothing: where it lies beside weights, into these; where it lies alone, into the model that its
`base_model_name_or_path` names, a folder or a hub id. peft need not be installed. The fingerprint counts both.

```
python -m gpu_worker --model my-adapter --check
# measured at load    LoRA of rank 16 on 72 modules, merged into BAAI/bge-base-en-v1.5
```

Served, equal to peft within 1e-5: LoRA and rsLoRA of linear layers (`nn.Linear`); `target_modules` as a list, a
pattern or `all-linear`, with `exclude_modules`, `layers_to_transform` and `layers_pattern`; `rank_pattern`,
`alpha_pattern`; biases of these layers (`bias: lora_only`, `lora_bias`). Every other option or tensor is refused in one
line that names it: DoRA, trained tokens and embeddings, GPT-2's `Conv1D` layers, `bias: all`, and `modules_to_save`,
which peft sets by itself for classifiers (`TaskType.SEQ_CLS`). Merge such an adapter with peft and serve the merged
folder; if the adapter has a `modules.json`, copy it and the folders that it names:

```python
base = AutoModelForSequenceClassification.from_pretrained("base")  # AutoModel for embeddings
PeftModel.from_pretrained(base, "my-adapter").merge_and_unload().save_pretrained("merged")
AutoTokenizer.from_pretrained("base").save_pretrained("merged")
```

Refused by name, too:

- other types (IA3, prefix tuning, ...), and `init_lora_weights` that replaces the base's weights (PiSSA, OLoRA,
  LoftQ, ...);
- a tensor that is missing, has no place in the base or another shape or rank than its description says, or holds
  numbers that are not finite: peft would take random values or none for these in silence;
- `adapter_model.bin`, a pickle; an adapter on an adapter.

An adapter alone without a `modules.json` pools as sentence-transformers does, whatever its base's modules say; the
card's `notice` tells it.

### Many adapters over one base

`--adapter NAME=FOLDER` (a directory or hub id, repeated) serves adapters beside the model. Each is a model of its own
name, card and fingerprint; all share one copy of the weights, and texts of different adapters share steps: the base's
products are made once for all rows, and each text's rows get the two small products of its adapter.

```
python -m gpu_worker --model BAAI/bge-base-en-v1.5 --adapter legal=adapters/legal --adapter code=someone/code-lora
curl -s 127.0.0.1:8080/v1/embeddings -H 'content-type: application/json' -d '{{"model": "legal", "input": "a clause"}}'
```

GetModel, ListModels and `/v1/models` list them; a request that names no model is for the base. Workers with different
adapters may stand behind one frontend: a job goes to a worker that has its adapter, by fingerprint. `selvage.Engine`
has `adapter=[...]`, and its calls `model="legal"`.

An adapter takes over the base's pooling and tokenizer; its prompts and a lower limit come from its own folder where
that has a `modules.json`. Served are pairs on linear layers of encoders that run packed, with biases of these layers.
Refused by name, with the advice to serve it alone: another pooling, layers behind the encoder, another tokenizer,
another base's name, a changed head, layers whose weight their class reads itself (T5's `wo`), DeBERTa's keys and
queries; and `--linear int8` with adapters.

At load every adapter's rows in a mixed step are compared with the model's own run. The log and `--check` tell each
adapter's rank, modules, memory and fingerprint, and how much longer a step of several adapters takes. Layers with
adapters run as transformers wrote them, not by the processor's kernels for whole layers, compiled or as graphs: texts
without an adapter may pay for that too. MiniLM with 16 adapters of rank 16 on all its linear layers, on two cores of an
AMD EPYC: texts without one are as fast as before; steps of 1, 4 and 16 adapters mixed take 1.2, 1.3 and 1.4 times as
long, and 16 texts of 16 tokens with an adapter each 1.9 times (`python -m benchmarks adapters`).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedModel:
    """How one model type is served.

    `runs`: packed, in equal lengths or refused. `long_texts`: in pieces, or why not, empty where this is plain from the
    kind of model. `layers`: the form of its layers that run whole by the processor's
    kernels, empty where they run as transformers wrote them. `why` it is not packed.
    """

    kind: str
    model: str
    runs: str
    long_texts: str = ""
    layers: str = ""
    why: str = ""


def try_model_type(kind: str) -> SupportedModel:
    """Builds, writes and loads a tiny model of a type, to see how it is served."""
    name = miniature.model_class(CONFIG_MAPPING[kind]).__name__
    with TemporaryDirectory() as folder:
        path = Path(folder)
        try:
            with quiet():
                miniature.write(path, kind)
        except Exception as error:  # transformers' own code
            why = f"transformers cannot build it: {first_line(error)}"
            return SupportedModel(kind=kind, model=name, runs=REFUSED, why=why)
        try:
            model = load(folder, CPU)
        except ModelRefused as error:
            return SupportedModel(kind=kind, model=name, runs=REFUSED, why=str(error).replace(f"{folder}: ", ""))
    return SupportedModel(
        kind=kind,
        model=name,
        runs=EQUAL_LENGTH if model.unpacked_reason else PACKED,
        long_texts=_long_texts(model.cutting),
        layers=model.native_layers,
        why=model.unpacked_reason,
    )


def _long_texts(cutting: Cutting) -> str:
    """How long texts are computed, for the table."""
    if cutting.allowed:
        return IN_PIECES
    return "" if cutting.refusal in (UNPACKED, TWO_SIDED) else cutting.refusal


def try_model_types(kinds: list[str]) -> Iterator[SupportedModel]:
    """Tries the model types, with progress on standard error, since all of them take minutes."""
    for number, kind in enumerate(kinds, 1):
        print(f"\r{number}/{len(kinds)} {kind:40}", end="", file=sys.stderr, flush=True)
        yield try_model_type(kind)
    print(file=sys.stderr)


def page(models: list[SupportedModel]) -> str:
    """The page of Markdown that lists the models."""
    counts = [sum(model.runs == runs for model in models) for runs in (PACKED, EQUAL_LENGTH, REFUSED)]
    rows = "\n".join(
        f"| {model.kind} | {model.model} | {model.runs} | {_cell(model.long_texts)} | {model.layers} | "
        f"{_cell(model.why)} |"
        for model in models
    )
    return PAGE.format(
        version=transformers_version,
        packed=counts[0],
        equal=counts[1],
        refused=counts[2],
        pieces=sum(model.long_texts == IN_PIECES for model in models),
        whole=sum(bool(model.layers) for model in models),
        rows=rows,
    )


def _cell(why: str) -> str:
    """A reason as one cell of the table, without figures, which differ from machine to machine."""
    line = re.sub(r"(differ by|noise is) [\d.e+-]+", r"\1 ...", why).replace("|", "/")
    return line if len(line) <= WIDEST else f"{line[:WIDEST]}..."


if __name__ == "__main__":
    parser = CommandParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_type", nargs="*", help="of transformers' config.json; default: all")
    parser.add_argument("--out", type=Path, help="the page to write; default: standard output")
    arguments = parser.parse_args()
    text = page(list(try_model_types(arguments.model_type or list(miniature.model_types()))))
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text, end="")
