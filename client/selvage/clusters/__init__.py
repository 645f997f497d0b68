"""Batches of texts in, columns of vectors out, in a process that serves many batches: what Ray and Daft have in common.

    options    options by their names -> options of the vectors, and services
    schema     the Arrow types of the results
    embedding  texts -> a table with a row for each; threads may embed several batches at a time

The bulk command's code, `selvage.bulk`, checks texts, batches them, sends them again after errors, and finds the text
at fault; see docs/clusters.md.
"""
