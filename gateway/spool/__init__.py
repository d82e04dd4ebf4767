"""A queue of byte records on disk that survives the process: appended in groups, read from its head, acknowledged.

`records` frames them, `segment` is one file of them, `spool` the queue in a directory of its own, with a lock that says
whose it is. Knows nothing of what the records say.
"""

from gateway.spool.records import MAX_PAYLOAD_BYTES
from gateway.spool.spool import Spool

__all__ = ["MAX_PAYLOAD_BYTES", "Spool"]
