"""What a process lets in, whatever door it comes through.

admission.py  what a door asks: requests, bytes, results, replies, streams
bounds.py     what may be there at once
reads.py      how requests are read: few at once, slow ones as long as there is memory
pool.py       bytes that are there at once
holding.py    those of one request or stream
streams.py    streams that are open, and how they end
refusals.py   what was refused, by reason
"""

from shared.server.admission.admission import Admission
from shared.server.admission.bounds import Bounds

__all__ = ["Admission", "Bounds"]
