"""Jobs on their way through the steps: in which order they are served, what they ask of a step, what came of it.

A unit is what has to be computed in one step: a sequence, or a query with its document. Everything here lies on the
host but the query rows that a rerank keeps from its first step to its last document.
"""
