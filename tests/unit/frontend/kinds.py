"""Small tokenizers of every kind that models have, with the vocabulary of a few words and all letters beside them."""

import io
import unicodedata
from collections.abc import Callable
from functools import cache

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

CORPUS = [
    "the theme of the other 12 words",
    "others there, then 345 them",
    "wordy sword: thé mother — don't",
    "中文 字 words",
] * 3
LETTERS = sorted({each for text in CORPUS for each in unicodedata.normalize("NFKD", text)} - {" "})
GPT_2 = pre_tokenizers.ByteLevel.alphabet()
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def bert() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(CORPUS, WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]"], show_progress=False))
    return made


def byte_level(*, prefix: bool, digits: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if digits:
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), made.pre_tokenizer]
        )
    made.train_from_iterator(CORPUS, BpeTrainer(vocab_size=330, initial_alphabet=GPT_2, show_progress=False))
    return made


def qwen() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    split, plain = pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    made.train_from_iterator(CORPUS, BpeTrainer(vocab_size=330, initial_alphabet=GPT_2, show_progress=False))
    return made


@cache
def charsmap() -> bytes:
    """How SentencePiece normalises, as its models bring it along; it is not where only a frontend is installed."""
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto
    trained = io.BytesIO()
    trainer.train(
        sentence_iterator=iter(CORPUS), model_writer=trained, vocab_size=60, hard_vocab_limit=False, minloglevel=2
    )
    content: bytes = proto.FromString(trained.getvalue()).normalizer_spec.precompiled_charsmap
    return content


def unigram(*, by_words: bool = False, scheme: str = "always", precompiled: bool = False) -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence(
        [
            normalizers.Strip(),
            normalizers.Replace("``", '"'),
            normalizers.NFKC(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    if precompiled:
        several = normalizers.Replace(Regex(" {2,}"), " ")
        made.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap()), several])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    if by_words:
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), made.pre_tokenizer])
    trainer = UnigramTrainer(vocab_size=90, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    return made


def llama(*, prepend: bool = True, scheme: str | None = None, gemma: bool = False) -> Tokenizer:
    """Merges over the whole text, words told apart by a mark."""
    words = ["▁the", "▁them", "▁▁", "▁▁▁▁", "the", "them", "he", "th", "or", "▁w", "▁wor", "wor", "12"]
    pieces = ["<unk>", "▁", *(f"<0x{each:02X}>" for each in range(256)), *LETTERS, *dict.fromkeys(words)]
    known = set(pieces)
    merges = [
        (piece[:at], piece[at:])
        for piece in sorted(words, key=len)
        for at in range(1, len(piece))
        if {piece[:at], piece[at:]} <= known
    ]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replaced = normalizers.Replace(" ", "▁")
    if scheme:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    else:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replaced] if prepend else [replaced])
    if gemma:
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.ByteFallback()
    return made


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "BERT": bert,
    "GPT-2": lambda: byte_level(prefix=False),
    "RoBERTa": lambda: byte_level(prefix=True),
    "StarCoder": lambda: byte_level(prefix=False, digits=True),
    "Qwen": qwen,
    "T5": unigram,
    "XLM-R, converted of old": lambda: unigram(by_words=True),
    "XLM-R": lambda: unigram(precompiled=True),
    "Unigram, the first word alone with a mark": lambda: unigram(scheme="first"),
    "Llama 2": llama,
    "Llama 2, converted anew": lambda: llama(scheme="first"),
    "Gemma": lambda: llama(prepend=False, gemma=True),
}
MARKERS = [
    AddedToken("<mask>", lstrip=True, rstrip=True, special=True),
    AddedToken("[Q] ", normalized=False),
    AddedToken("  ", normalized=False),
    AddedToken("wor", single_word=True, normalized=True),
    AddedToken("</s>", special=True),
]


def made(kind: str, *, markers: bool) -> Tokenizer:
    tokenizer = KINDS[kind]()
    if markers:
        tokenizer.add_tokens(MARKERS)
    return tokenizer
