"""Models of vectors that read chat messages: rows of tiny random models equal sentence-transformers'.

Of models that read images too, the text side is compared with the whole model of transformers.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText, PreTrainedTokenizerFast

from frontend_service.domain.requests import PromptChoice, Truncation
from frontend_service.tokenizing.pairs import PairTexts
from frontend_service.tokenizing.tokenizer import ModelTokenizer
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.card import card_of
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions
from gpu_worker.repository.adapters import NamedAdapter
from harness.random_models import synthetic
from harness.random_models.miniature import widen
from harness.random_models.shapes import DECODER, TINY
from shared.errors import InvalidInput, ModelRefused
from shared.jobs import Classify, Job
from shared.vectors import InputType, TruncationSide
from support.adapted import write_adapter
from support.chunks import run_to_end
from support.tiny import CPU, DENSE, MULTI, dense_rows, encode, listed, run, scores, token_rows, write_json

pytestmark = pytest.mark.usefixtures("one_thread")
LIMIT = 64
TEXTS = ["a quiet harbour.", " \n two  lines,\nand {text} {prompt} \n", "", "boats and harbours? " * 90, "é<|im_end|>7"]
PROMPTS = {"query": "Find {text} the passage: ", "document": " x ", "empty": ""}
CHATML = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\nRepresent it.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}{{- part.text }}{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
CONTENT = "(messages[0].content if messages[0].content is string else messages[0].content[0].text)"
GEMMA = (
    "{{ bos_token }}{%- set before = '' %}{%- if messages[0].role == 'system' %}"
    f"{{%- set before = {CONTENT} + '\n\n' %}}{{%- set messages = messages[1:] %}}{{%- endif %}}"
    f"{{{{ '<|im_start|>user\n' + before }}}}{{{{ {CONTENT} | trim }}}}{{{{ '<|im_end|>\n' }}}}"
)
WORDS = "{{ 'Represent ' + messages[-1].content + '\n\nAs one word:' }}"
TEMPLATES = {"chatml": CHATML, "gemma": GEMMA}
FRAMES = {
    "chatml": "<|im_start|>system\nRepresent it.<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n",
    "gemma": "<bos><|im_start|>user\n{stripped_text}<|im_end|>\n",
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE that puts a token before every text, and one behind it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator([*TEXTS, CHATML, *PROMPTS.values()] * 9, trainer)
    around = [("<bos>", 1), ("<eos>", 2)]
    made.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=around)
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=LIMIT, **names)


def write(folder: Path, tokenizer: PreTrainedTokenizerFast, template: str = CHATML, **settings: Any) -> Path:
    """A tiny Qwen3 whose texts are chat messages, by the last token, as sentence-transformers saves it."""
    options = {"eos_token_id": 2, "bos_token_id": 1, "vocab_size": 600}
    config = AutoConfig.for_model("qwen3", **(TINY | DECODER | options))
    synthetic.build(config, "encoder", CPU).eval().save_pretrained(folder)
    return write_around(folder, tokenizer, template, **settings)


def write_around(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    template: str,
    *,
    structured: bool = False,
    pooling: str = "lasttoken",
    prompts: dict[str, str] = PROMPTS,
    **settings: Any,
) -> Path:
    """Everything but the weights."""
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(template)
    way = {"method": "forward", "method_output_name": "last_hidden_state"}
    text = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    message = way | {"format": "structured" if structured else "flat"}
    return write_json(
        folder,
        modules=listed("Transformer", "Pooling", "Normalize"),
        sentence_bert_config=text | {"modality_config": {"text": way, "message": message}} | settings,
        config_sentence_transformers={"prompts": prompts},
        **{"1_Pooling__config": {"pooling_mode": pooling, "embedding_dimension": 64, "include_prompt": False}},
    )


def rows(model: Model, texts: list[str], prompt: PromptChoice) -> np.ndarray:
    """Rows of texts as a frontend and a worker make them."""
    reader = ModelTokenizer(model.tokenizer.content, card_of(model))
    cut = Truncation(truncate=True)
    batch = reader.texts(texts, reader.prompt(prompt), cut, "texts[{}]", prompt.input_type)
    return dense_rows(run(ModelEngine(model), [Job(id=1, work=encode(DENSE), tokens=batch.tokens)])[0])


def choices() -> Iterator[tuple[PromptChoice, dict[str, Any]]]:
    """Ways to ask for a prompt, here and in sentence-transformers."""
    yield PromptChoice(input_type=InputType.UNSPECIFIED), {}
    yield PromptChoice(literal=" {text}: "), {"prompt": " {text}: "}
    for name in PROMPTS:
        yield PromptChoice(name=name), {"prompt_name": name}


@pytest.mark.parametrize("pooling", ["lasttoken", "mean"])
@pytest.mark.parametrize("structured", [False, True], ids=["flat", "structured"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_rows_are_sentence_transformers(
    name: str, structured: bool, pooling: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """With every kind of prompt, for texts that are cut, and for texts that hold marks of the template."""
    from sentence_transformers import SentenceTransformer  # seconds to import, and few ask

    folder = write(tmp_path, tokenizer, TEMPLATES[name], structured=structured, pooling=pooling)
    model, reference = load(str(folder), CPU), SentenceTransformer(str(folder), device="cpu")
    assert card_of(model).message_templates == {"": FRAMES[name]}
    assert card_of(model).include_prompt
    for choice, options in choices():
        expected = reference.encode(TEXTS, **options)
        assert np.abs(rows(model, TEXTS, choice) - expected).max() < 2e-5, options
    assert np.abs(reference.encode(TEXTS) - reference.encode(TEXTS, prompt_name="query")).max() > 0.01


@pytest.mark.parametrize("side", list(TruncationSide))
def test_a_cut_message_ends_as_the_template_does(
    side: TruncationSide, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Also where its last tokens are no special ones, and where a text has just the limit's length."""
    from sentence_transformers import SentenceTransformer  # seconds to import, and few ask

    named = side.name.lower()
    folder = write(tmp_path, tokenizer, WORDS, prompts={}, processor_kwargs={"truncation_side": named})
    model, reference = load(str(folder), CPU), SentenceTransformer(str(folder), device="cpu")
    texts = ["a" * length for length in range(1, 90)]
    expected = reference.encode(texts)
    assert np.abs(rows(model, texts, PromptChoice(input_type=InputType.UNSPECIFIED)) - expected).max() < 2e-5
    card = card_of(model)
    shown = list(ModelTokenizer(model.tokenizer.content, card).shown([texts[-1]], "", Truncation(truncate=True), "t{}"))
    read = [shown[0].read[start:end] for start, end in shown[0].offsets]
    assert len(read) == LIMIT
    assert shown[0].read.endswith("".join(read[-4:]))


def test_options_of_the_template_count(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    options = {"chat_template": {"add_generation_prompt": True}}
    folder = write(tmp_path, tokenizer, processing_kwargs=options)
    card = card_of(load(str(folder), CPU))
    assert card.message_templates == {"": FRAMES["chatml"] + "<|im_start|>assistant\n"}
    prompted = "<|im_start|>system\n{prompt}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert card.prompted_message_templates == {"": prompted}


def test_a_template_without_a_place_for_prompts(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """A model without prompts is served, and tells that it takes none; a model with prompts is refused."""
    model = load(str(write(tmp_path / "served", tokenizer, WORDS, prompts={"query": ""})), CPU)
    assert not ModelTokenizer(model.tokenizer.content, card_of(model)).takes_prompts
    with pytest.raises(ModelRefused, match="has the prompt 0 times, it must put it in once"):
        load(str(write(tmp_path / "refused", tokenizer, WORDS)), CPU)


def test_a_limit_that_leaves_no_room_for_the_text(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Of a request, and of the files: there a prompt may be too long."""
    with pytest.raises(ModelRefused, match=r"its message with the prompt 'long' and a word take \d+ tokens, .* 64"):
        load(str(write(tmp_path / "refused", tokenizer, prompts={"long": "w " * 60})), CPU)
    model = load(str(write(tmp_path / "served", tokenizer)), CPU)
    reader = ModelTokenizer(model.tokenizer.content, card_of(model))
    with pytest.raises(
        InvalidInput, match=r"texts\[0\]: the chat message has \d+ tokens around a text, the limit is 9"
    ):
        reader.texts(["a b c"], "", Truncation(truncate=True, max_tokens=9), "texts[{}]")


AUGMENTED = CHATML + "{% if task == 'query' %}{{ '<pad>' * 5 }}{% elif task %}{{ 'd' }}{% endif %}"


def test_a_template_may_ask_for_the_task(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Queries and documents of dense vectors have a template each, and texts that are neither a third."""
    from sentence_transformers import SentenceTransformer  # seconds to import, and few ask

    folder = write(tmp_path, tokenizer, AUGMENTED)
    model, reference = load(str(folder), CPU), SentenceTransformer(str(folder), device="cpu")
    assert card_of(model).message_templates["query"] == FRAMES["chatml"] + "<pad>" * 5
    ways = {"UNSPECIFIED": reference.encode, "QUERY": reference.encode_query, "DOCUMENT": reference.encode_document}
    for side, encoded in ways.items():
        choice = PromptChoice(input_type=InputType[side])
        assert np.abs(rows(model, TEXTS, choice) - encoded(TEXTS)).max() < 2e-5, side


def write_late(folder: Path, tokenizer: PreTrainedTokenizerFast, **settings: Any) -> Path:
    """A model of late interaction with such a template, as sentence-transformers saves it."""
    write(folder, tokenizer, AUGMENTED, **settings)
    late, dense = "sentence_transformers.multi_vector_encoder.modules", "sentence_transformers.base.modules.dense.Dense"
    kinds = [dense, f"{late}.multi_vector_mask.MultiVectorMask", "sentence_transformers.models.Normalize"]
    modules = listed("Transformer") + [
        {"idx": n, "name": str(n), "path": f"{n}_{kind.rpartition('.')[2]}", "type": kind}
        for n, kind in enumerate(kinds, 1)
    ]
    rows = {"in_features": 64, "out_features": 16, "bias": False, "activation_function": "torch.nn.Identity"}
    write_json(
        folder,
        modules=modules,
        config_sentence_transformers={
            "model_type": "MultiVectorEncoder",
            "prompts": {"query": "find ", "document": ""},
        },
        **{
            "1_Dense__config": rows
            | {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"},
            "2_MultiVectorMask__config": {"skiplist_words": ["."]},
            "3_Normalize__config": {"module_input_name": "token_embeddings"},
        },
    )
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors", {"format": "pt"})
    return folder


def test_late_interaction_over_messages(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Every token of a message has a vector, and each side its own limit; query expansion is refused."""
    from sentence_transformers import MultiVectorEncoder  # seconds to import, and few ask

    folder = write_late(tmp_path / "served", tokenizer, query_length=40, document_length=48)
    model, reference = load(str(folder), CPU), MultiVectorEncoder(str(folder), device="cpu")
    reader = ModelTokenizer(model.tokenizer.content, card_of(model))
    for side, encoded in ((InputType.QUERY, reference.encode_query), (InputType.DOCUMENT, reference.encode_document)):
        prompt = reader.prompt(PromptChoice(input_type=side))
        batch = reader.texts(TEXTS, prompt, Truncation(truncate=True), "texts[{}]", side)
        work = encode(MULTI, input_type=side)
        result = token_rows(run(ModelEngine(model), [Job(id=1, work=work, tokens=batch.tokens)])[0])
        for mine, theirs in zip(result, encoded(TEXTS), strict=True):
            assert np.abs(mine - np.asarray(theirs)).max() < 2e-5
    expansion = {"strategy": "fixed", "length": 32, "attend": False, "token": None}
    with pytest.raises(ModelRefused, match="message with query_expansion is not supported"):
        load(str(write_late(tmp_path / "refused", tokenizer, query_expansion=expansion)), CPU)


def test_an_adapter_beside_a_model_of_messages(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Its texts are messages too, with prompts of its own; it needs the template of its base."""
    base = write(tmp_path / "base", tokenizer)
    folder = write_adapter(tmp_path / "adapter", base, target_modules=["q_proj"])
    write_around(folder, tokenizer, CHATML, prompts={"query": "Other: "})
    options = LoadOptions(adapters=[NamedAdapter(name="adapter", folder=str(folder))])
    adapter = load(str(base), CPU, options).adapters[0]
    assert card_of(adapter).prompted_message_templates == card_of(load(str(base), CPU)).prompted_message_templates
    assert adapter.recipe.prompts == {"query": "Other: "}
    (folder / "chat_template.jinja").write_text(CHATML.replace("Represent it.", "Represent that."))
    with pytest.raises(ModelRefused, match="its chat template is another one than the base's"):
        load(str(base), CPU, options)
    (folder / "score_template.json").write_text("{}")
    with pytest.raises(ModelRefused, match=r"score_template.json: it is another one than the base's: serve"):
        load(str(base), CPU, options)


def test_an_adapter_with_prompts_needs_a_place_for_them(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    base = write(tmp_path / "base", tokenizer, WORDS, prompts={})
    folder = write_adapter(tmp_path / "adapter", base, target_modules=["q_proj"])
    write_around(folder, tokenizer, WORDS, prompts={"query": "Other: "})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    options = LoadOptions(adapters=[NamedAdapter(name="adapter", folder=str(folder))])
    with pytest.raises(ModelRefused, match=r"--adapter adapter: .*no place for a prompt"):
        load(str(base), CPU, options)


def test_a_copy_elsewhere_is_the_same_model(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    first = write(tmp_path / "first", tokenizer)
    shutil.copytree(first, tmp_path / "second")
    one, other = (card_of(load(str(tmp_path / name), CPU)).fingerprint for name in ("first", "second"))
    assert one == other


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[-1].content | upper }}", "has the text 0 times"),
        ("{{ messages[-1].content | replace('A', 'b') }}", "changes the text"),
        ("{{ messages[-1].content }}{{ messages[-1].content }}", "has the text 2 times"),
        ("{{ 'short' if messages[-1].content | length < 9 }}{{ messages[-1].content }}", "depends on its content"),
        ("{{ raise_exception('no') }}", "cannot be rendered: no"),
        ("{{ strftime_now('%d') }}{{ messages[-1].content }}", "writes the date"),
    ],
)
def test_other_templates_are_refused(
    template: str, reason: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    with pytest.raises(ModelRefused, match=rf"sentence_bert_config.json: modality_config: message: .*{reason}"):
        load(str(write(tmp_path, tokenizer, template)), CPU)


ROTARY = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2]}
WHOLES: dict[str, dict[str, Any]] = {
    "qwen3_vl": {
        "text_config": {"rope_parameters": ROTARY | {"mrope_interleaved": True}, "head_dim": 16},
        "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4}
        | {"out_hidden_size": 64, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    },
    "qwen2_5_vl": {
        "text_config": {"rope_parameters": ROTARY},
        "vision_config": {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4}
        | {"out_hidden_size": 64},
    },
    "qwen2_vl": {
        "text_config": {"rope_parameters": ROTARY},
        "vision_config": {"depth": 1, "embed_dim": 16, "num_heads": 2, "patch_size": 4, "hidden_size": 64},
    },
    "gemma3": {
        "text_config": {"head_dim": 16, "sliding_window": 24, "sliding_window_pattern": 2},
        "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"image_size": 16, "patch_size": 4},
        "mm_tokens_per_image": 4,
    },
    "gemma4": {
        "text_config": {"head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 16, "sliding_window": 24}
        | {"vocab_size_per_layer_input": 600, "num_kv_shared_layers": 0},
        "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "patch_size": 4}
        | {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8},
        "audio_config": None,
    },
    "embedding_gemma2": {
        "text_config": {"head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 16, "sliding_window": 24}
        | {"embedding_dim": 64},
        "vision_config": None,
        "audio_config": None,
    },
}


def whole_config(kind: str) -> dict[str, Any]:
    """What the config.json of a tiny model of texts and images says."""
    texts = TINY | DECODER | {"vocab_size": 600, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return WHOLES[kind] | {"text_config": texts | WHOLES[kind]["text_config"]}


def write_whole(folder: Path, kind: str) -> Any:
    """A tiny model of texts and images with random weights; returns it."""
    whole = AutoModel.from_config(AutoConfig.for_model(kind, **whole_config(kind))).eval()
    widen(whole, 0.2)
    whole.save_pretrained(folder)
    return whole


def message_ids(tokenizer: Any, template: str, turns: list[tuple[str, str]]) -> torch.Tensor:
    """Ids [1, L] of messages of some roles, without an empty one of the system, as a processor of transformers makes
    them."""
    messages = [
        {"role": role, "content": [{"type": "text", "text": content}]}
        for role, content in turns
        if content or role != "system"
    ]
    read = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    ids: torch.Tensor = tokenizer(read, add_special_tokens=not read.startswith("<bos>"), return_tensors="pt").input_ids
    return ids


@pytest.mark.parametrize("kind", WHOLES)
def test_the_text_side_computes_what_the_whole_model_does(
    kind: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """As sentence-transformers has it, a processor reads such texts: special tokens go around those that do not begin
    with one."""
    template = GEMMA if "gemma" in kind else CHATML
    torch.manual_seed(0)
    whole = write_whole(tmp_path, kind)
    model = load(str(write_around(tmp_path, tokenizer, template, structured=True)), CPU)
    notice = card_of(model).notice
    assert f"the text side of {kind} is served: images, audio and video are not read" in notice
    assert not [name for name, _ in model.encoder.model.named_parameters() if "vis" in name]
    texts = TEXTS[:3]
    for choice, prompt in (
        (PromptChoice(input_type=InputType.UNSPECIFIED), "empty"),
        (PromptChoice(name="query"), "query"),
    ):
        expected = []
        for text in texts:
            ids = message_ids(tokenizer, template, [("system", PROMPTS[prompt]), ("user", text)])
            with torch.inference_mode():
                expected.append(whole(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0, -1])
        unit = torch.nn.functional.normalize(torch.stack(expected)).numpy()
        assert np.abs(rows(model, texts, choice) - unit).max() < 2e-5


def test_a_template_in_the_file_of_the_processor(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """The tokenizer does not read it. It may begin with the first token of a text always or never."""
    write_whole(tmp_path, "qwen3_vl")
    write_around(tmp_path, tokenizer, CHATML, structured=True)
    (tmp_path / "chat_template.jinja").unlink()
    write_json(tmp_path, chat_template={"chat_template": GEMMA})
    assert card_of(load(str(tmp_path), CPU)).message_templates == {"": FRAMES["gemma"]}
    write_json(tmp_path, chat_template={"chat_template": "{{ bos_token if messages[1] }}" + CHATML})
    with pytest.raises(ModelRefused, match="begins with <bos> only with a prompt"):
        load(str(tmp_path), CPU)


def test_the_text_side_of_a_checkpoint_with_a_head(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """The tensors of such a checkpoint lie below `model.`; one of the text side without a place is refused by name."""
    torch.manual_seed(0)
    write_whole(tmp_path, "qwen3_vl")
    write_around(tmp_path, tokenizer, CHATML, structured=True)
    plain = load(str(tmp_path), CPU)
    tensors = {f"model.{name}": tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(described | {"architectures": ["Qwen3VLForConditionalGeneration"]})
    )
    choice = PromptChoice(input_type=InputType.UNSPECIFIED)
    assert (rows(load(str(tmp_path), CPU), TEXTS, choice) == rows(plain, TEXTS, choice)).all()
    save_file(tensors | {"model.language_model.layers.0.new.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelRefused, match=r"takes no .*layers\.0\.new\.weight"):
        load(str(tmp_path), CPU)


PAIRS = (
    "<bos>{% for message in messages %}{{ {'query': 'q', 'document': 'd'}[message.role] or message.role }}\n"
    "{{ message.content[0].text }}<|im_end|>\n{% endfor %}<|im_start|>a\n"
)
YES, NO = 300, 301


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["qwen3_vl", "gemma3"])
def test_a_reranker_of_images_ranks_texts(
    kind: str, tied: bool, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Its score is what the logits of the whole model say, with and without an instruction."""
    torch.manual_seed(0)
    described = whole_config(kind) | {"tie_word_embeddings": tied}
    whole = AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, **described)).eval()
    widen(whole, 0.2)
    whole.save_pretrained(tmp_path)
    way = {"method": "forward", "method_output_name": "logits", "format": "structured"}
    task = {"transformer_task": "any-to-any", "module_output_name": "causal_logits"}
    write_around(tmp_path, tokenizer, PAIRS)
    write_json(
        tmp_path,
        modules=listed("Transformer", "LogitScore"),
        sentence_bert_config=task | {"modality_config": {"message": way}},
        config_sentence_transformers={},
        **{"1_LogitScore__config": {"true_token_id": YES, "false_token_id": NO}},
    )
    model = load(str(tmp_path), CPU)
    assert f"the text side of {kind} is served" in card_of(model).notice
    query, documents = "what is a boat?", ["a quiet harbour.", "\n boats "]
    for instruction in ("", "find boats"):
        texts = PairTexts(
            firsts=[query],
            seconds=documents,
            matrix=True,
            entry="documents[{}]",
            cut=Truncation(truncate=True),
            prompt=PromptChoice(literal=instruction),
        )
        batch = run_to_end(ModelTokenizer(model.tokenizer.content, card_of(model)).pairs(texts))
        result = run(ModelEngine(model), [Job(id=1, work=Classify(), tokens=batch.tokens)])[0]
        for document, logit in zip(documents, scores(result)[:, 0], strict=True):
            turns = [("system", instruction), ("query", query), ("document", document)]
            ids = message_ids(tokenizer, PAIRS, turns)
            with torch.inference_mode():
                last = whole(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -1]
            assert abs(float(last[YES] - last[NO]) - logit) < 1e-4
    (tmp_path / "chat_template.jinja").write_text(PAIRS.removeprefix("<bos>"))
    with pytest.raises(ModelRefused, match="its processor puts special tokens around the template of a pair"):
        load(str(tmp_path), CPU)
