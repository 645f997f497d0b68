"""Readers for a model repository on disk: recipe, tokenizer, weights. Nothing in a file is executed."""
