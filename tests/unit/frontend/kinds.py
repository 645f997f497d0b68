"""Small tokenizers of two kinds, trained on a few words."""

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

CORPUS = [
    "the theme of the other 12 words",
    "others there, then 345 them",
    "wordy sword: thé mother — don't",
    "中文 字 words",
] * 3
GPT_2 = pre_tokenizers.ByteLevel.alphabet()
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(*, prefix: bool) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.train_from_iterator(CORPUS, BpeTrainer(vocab_size=330, initial_alphabet=GPT_2, show_progress=False))
    return made


def qwen() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    split, plain = pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    made.train_from_iterator(CORPUS, BpeTrainer(vocab_size=330, initial_alphabet=GPT_2, show_progress=False))
    return made
