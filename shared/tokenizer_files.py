"""Names of the files that a worker sends to frontends so that they can read texts (GetTokenizer)."""

TOKENIZER_FILE = "tokenizer.json"
QUERY_TOKENIZER_FILE = "query_tokenizer.json"
"""The tokenizer of queries, where they are read with another one than documents."""
QUERY_TABLE_FILE = "query_table.f32"
"""Weights of queries by token id, little-endian float32, where frontends look queries up by themselves."""
TABLE_WEIGHTS = 4 * 1024 * 1024
"""Most weights of such a table: 16 MiB."""
WEIGHT_BYTES = 4
