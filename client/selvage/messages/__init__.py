"""What the client's methods take and return, as messages of the contract and back. No calls.

enums           names such as "dense" <-> numbers of enums
vectors         numpy arrays <-> vectors in messages
inputs          texts or token ids, checked
parts           where a large input is cut
embedding       embed            classification   classify, classify_tokens
ranking         rerank, score, max_sim
model           tokenize, detokenize, model, models
card            the card of a model
"""
