"""Open jobs: in which order their units are served, what a step computes for them, and what it left in their tables.

A unit is computed in one step: a sequence, a pair, or a document. Everything here lies on the host, except the query
rows that a job keeps on the device from its first step to its last document.
"""
