"""Files of texts in, shards of vectors out: `python -m selvage.bulk --help`; docs/bulk.md explains it.

    flags           the command line -> options
    files           which inputs there are
    reader          inputs -> tables of rows, by pyarrow's readers
    sender          texts -> vectors, by `embed` of all targets' clients; it decides on retries and on texts at fault
    arrow_columns   replies -> Arrow columns
    shards          rows and vectors in order -> files, renamed when whole; which of them are finished, of what
    job             all of these together, and how far it is

The extra `bulk` (pyarrow) is needed, and imported at its first use. Ray and Daft (`selvage.clusters`) share sender and
arrow_columns.
"""


class Failed(Exception):
    """Ends the command before its work is done. Only its message is shown: it names a flag, a file or a target."""
