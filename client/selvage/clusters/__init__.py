"""Batches of texts in, columns of vectors out, in a process that lives on: what Ray and Daft have in common.

    asked      options by their names -> what is asked of the model, and of whom
    schema     the Arrow types of what comes back
    embedding  texts -> a table, a row each; as many batches at a time as threads ask for

How texts are checked, cut, sent, sent again and blamed is the bulk command's, `selvage.bulk`; see docs/clusters.md.
"""
