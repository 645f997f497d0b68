"""A transformers encoder without its head: token ids to hidden states, packed or by equal length."""
