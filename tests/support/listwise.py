"""A tiny listwise reranker on disk, and its slow twin: what the code of jina-reranker-v3's repository computes.

The twin is written from what that code is known to do (vLLM's jina.py and io_processor.py tell the same), over
transformers' own Qwen3, one text at a time. It shares no line with the services.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3Model

from support.tiny import write_json

HIDDEN, WIDTH = 64, 24
POSITIONS = 4096
DOCUMENT_MARKER, QUERY_MARKER = "<|embed_token|>", "<|rerank_token|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", DOCUMENT_MARKER, QUERY_MARKER]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "You are a search relevance expert who can determine a ranking of the passages based on how relevant they are",
    *['<passage id="12">\n a document of some words \n</passage>\n<query>\n</query>\n'] * 20,
]
TEXTS = [
    "a quiet harbour with two boats",
    "the bread is baked at four in the morning",
    "boats, nets and a lighthouse: what the harbour lives by",
    "二つの船が港に入る",
    "",
    "  spaces before, and behind  ",
    "\na line of its own\n",
    "a quiet harbour with two boats",
]


def tokenizer() -> Tokenizer:
    """A byte-level BPE with the stages of Qwen3's and some merges."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    return made


def write(folder: Path, *, limit: int = POSITIONS, windowed: bool = False, **config: Any) -> Path:
    """Writes the folder as the model's repository has it. `limit`: the tokenizer's; `windowed`: layers as in v3.5."""
    torch.manual_seed(7)
    words = tokenizer()
    sliding: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
    qwen = Qwen3Config(
        vocab_size=words.get_vocab_size(),
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=POSITIONS,
        initializer_range=0.2,
        **(sliding if windowed else {}),
    )
    model = Qwen3Model(qwen)
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    tensors |= {
        "projector.0.weight": torch.randn(HIDDEN // 2, HIDDEN),
        "projector.2.weight": torch.randn(WIDTH, HIDDEN // 2),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    code = {"architectures": ["JinaForRanking"], "auto_map": {"AutoModel": "modeling.JinaForRanking"}}
    write_json(folder, config=qwen.to_dict() | code | config)
    fast = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<|endoftext|>", model_max_length=limit)
    fast.chat_template = "{{ messages }}"
    fast.save_pretrained(folder)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The model's own code, slowly. `query_length` and so on are its defaults."""

    tokenizer: Any
    model: Any
    first: torch.Tensor
    second: torch.Tensor
    query_length: int = 512
    document_length: int = 2048
    block_documents: int = 125

    @classmethod
    def read(cls, folder: Path, **options: int) -> "Twin":
        from safetensors.torch import load_file

        tensors = load_file(folder / "model.safetensors")
        config = Qwen3Config.from_pretrained(folder)
        model = Qwen3Model(config).eval()
        model.load_state_dict({name.removeprefix("model."): each for name, each in tensors.items() if "model." in name})
        return cls(
            tokenizer=AutoTokenizer.from_pretrained(folder),
            model=model,
            first=tensors["projector.0.weight"],
            second=tensors["projector.2.weight"],
            **options,
        )

    def blocks(self, query: str, documents: Sequence[str]) -> tuple[str, list[list[str]]]:
        """The query and the documents of each block, cut."""
        query, asked = self._cut(query, self.query_length)
        room = self.tokenizer.model_max_length - 2 * asked
        blocks: list[list[str]] = []
        block: list[str] = []
        left = room
        for whole in documents:
            document, tokens = self._cut(whole, self.document_length)
            block.append(document)
            left -= tokens
            if len(block) >= self.block_documents or left <= self.document_length:
                blocks.append(block)
                block, left = [], room
        return query, blocks + ([block] if block else [])

    def rerank(self, query: str, documents: Sequence[str], instruction: str = "") -> np.ndarray:
        """Scores [documents] float32."""
        query, blocks = self.blocks(query, documents)
        rows, queries, weights = [], [], []
        for block in blocks:
            documents_rows, query_row = self.vectors(self.prompt(query, block, instruction))
            assert len(documents_rows) == len(block)
            cosines = F.cosine_similarity(documents_rows, query_row.expand_as(documents_rows), dim=-1)
            rows.append(documents_rows.numpy())
            queries.append(query_row[0].numpy())
            weights.append(float(((1.0 + cosines) / 2.0).max()))
        mean, all_rows = np.average(np.stack(queries), axis=0, weights=weights), np.concatenate(rows)
        scores: np.ndarray = all_rows @ mean / (np.linalg.norm(mean) * np.linalg.norm(all_rows, axis=1))
        return scores

    def prompt(self, query: str, documents: Sequence[str], instruction: str = "") -> str:
        """The text of a block."""
        clean = [text.replace(QUERY_MARKER, "").replace(DOCUMENT_MARKER, "") for text in (query, *documents)]
        query, documents = clean[0], clean[1:]
        said = (
            "You are a search relevance expert who can determine a ranking of the passages based on how relevant they "
            "are to the query. If the query is a question, how relevant a passage is depends on how well it answers "
            "the question. If not, try to analyze the intent of the query and assess how well each passage satisfies "
            "the intent. If an instruction is provided, you should follow the instruction when determining the ranking."
        )
        asked = f"I will provide you with {len(documents)} passages, each indicated by a numerical identifier. "
        asked += f"Rank the passages based on their relevance to query: {query}\n"
        if instruction:
            asked += f"<instruct>\n{instruction}\n</instruct>\n"
        asked += "\n".join(
            f'<passage id="{number}">\n{document}{DOCUMENT_MARKER}\n</passage>'
            for number, document in enumerate(documents)
        )
        asked += f"\n<query>\n{query}{QUERY_MARKER}\n</query>"
        turn = f"<|im_start|>system\n{said}<|im_end|>\n<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
        return f"{turn}<think>\n\n</think>\n\n"

    def _cut(self, text: str, length: int) -> tuple[str, int]:
        ids = self.tokenizer(text, truncation=True, max_length=length)["input_ids"]
        return self.tokenizer.decode(ids) if len(ids) >= length else text, len(ids)

    def vectors(self, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The projected rows of the documents [n, W] and of the query [1, W]."""
        ids = self.tokenizer(prompt, return_tensors="pt")["input_ids"]
        document, query = self.tokenizer.convert_tokens_to_ids([DOCUMENT_MARKER, QUERY_MARKER])
        with torch.inference_mode():
            hidden = self.model(input_ids=ids).last_hidden_state[0]
            rows = [hidden[ids[0] == marker] for marker in (document, query)]
            return tuple(F.relu(each.float() @ self.first.T) @ self.second.T for each in rows)  # type: ignore[return-value]
