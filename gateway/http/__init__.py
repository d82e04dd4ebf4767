"""The OpenAI-compatible door: HTTP/1.1 and server-sent events over the same launcher that the gRPC services use.

Maps names and nothing else: who may call, what is admitted, how a generation runs, settles and ends is decided where
gRPC decides it. Knows the wire of `evenflow.inference.v1`, never the store.
"""

from gateway.http.app import http_door

__all__ = ["http_door"]
