"""What the client's methods take and return, as messages of the contract and back. No calls.

options         the options of calls, and how requests hold them; names such as "dense" <-> numbers of enums
vectors         numpy arrays <-> vectors in messages
inputs          texts or token ids, checked; where a large input is cut
embedding       embed
ranking         rerank, score, max_sim
text_results    classify, classify_tokens, tokenize, detokenize
card            model, models: the card of a model
"""
