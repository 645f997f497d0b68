"""Files of texts in, shards of vectors out: `python -m selvage.bulk --help`; docs/bulk.md explains it.

    flags      the command line -> options
    reading    files -> rows, one after the other            jsonl and text, csv, parquet
    windows    some thousand rows, cut into batches
    board      what waits, what is under way, what is done   fed by the job, emptied by targets
    target     a thread a service: one EmbedStream at a time
    fleet      all targets: the card of their model, and their threads
    shards     windows in order -> files, renamed when whole
    manifest   which shards are finished, of what, with what
    job        all of them together

pyarrow is needed for Parquet alone, and imported where that is read or written.
"""
