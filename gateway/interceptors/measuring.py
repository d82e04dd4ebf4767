"""The duration of each call, by method and status, however it ends."""

import asyncio
import time
from collections import abc
from contextlib import contextmanager

import grpc

from gateway.interceptors.call import Call
from gateway.meters import Meters


@contextmanager
def measured(call: Call, meters: Meters) -> abc.Iterator[None]:
    """The block is the call, which sets its `error`."""
    code = grpc.StatusCode.OK
    try:
        yield
    except asyncio.CancelledError:
        code = call.cancelled_code
        raise
    except BaseException:
        code = call.error.code if call.error else grpc.StatusCode.UNKNOWN
        raise
    finally:
        meters.rpc_ended(call.record.method, code.name, time.monotonic() - call.record.arrived_s)
