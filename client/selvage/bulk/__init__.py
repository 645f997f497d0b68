"""Files of texts in, shards of vectors out: `python -m selvage.bulk --help`; docs/bulk.md explains it.

    flags          the command line -> options; parser refuses flags and variables that do not exist
    input_reader   files -> rows, one after the other
                   (files, plan, rows, parquet_input, parquet_footer)
    row_blocks     some thousand rows, cut into batches
    batch_queue    batches that wait, are sent or have their results; the job fills it, the targets empty it
    targets        all services: the card of their model, and a target_thread for each, with one EmbedStream at a time
    service        a target as its thread sees it, over gRPC; engine_service: a model in this process
    shards         blocks in order -> files, renamed when whole
                   (values, npy, parquet_output, arrow, column_types, drafts)
    manifest       which shards are finished, of which inputs, with which settings
    job            all of these together; meter shows how far it is

pyarrow is needed for Parquet alone, and imported where Parquet is read or written.
"""
