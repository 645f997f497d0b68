"""Admission: how many requests, streams and bytes a process accepts, over all APIs together.

admission.py  what an API calls: requests, bytes, results, replies, streams
bounds.py     the limits
reads.py      reads requests: few at once, slow ones while there is memory
pool.py       a limit of bytes that requests share
holding.py    the bytes of one request or stream
streams.py    open streams, and how they end
refusals.py   refusals, counted by reason
"""

from shared.server.admission.admission import Admission
from shared.server.admission.bounds import Bounds

__all__ = ["Admission", "Bounds"]
