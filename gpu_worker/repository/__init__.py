"""A repository on disk -> what it says: recipe, tokenizer, weights. Nothing in a file is executed."""
