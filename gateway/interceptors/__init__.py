"""What happens around every RPC, in this order: request id, trace, errors to status, authentication, parsing.

There is one interceptor (`pipeline`), so that no method can be served without all of it; each concern has its own file.
"""

from gateway.interceptors.authentication import Gatekeeper
from gateway.interceptors.pipeline import MAX_MESSAGE_BYTES, RpcInterceptor

__all__ = ["MAX_MESSAGE_BYTES", "Gatekeeper", "RpcInterceptor"]
