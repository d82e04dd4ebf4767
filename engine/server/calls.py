"""What a call is from its first message to its last, whichever stream it comes on. Knows no stream."""

from collections import abc

from engine.core.events import Admitted, Finished
from engine.core.types import Request
from engine.errors import InvalidFieldError
from engine.grammars.dead_ends import fields_to_blame
from engine.loop_messages import Refused, Update
from engine.server import constraints, convert
from engine.server.intake import Call, Intake
from engine.server.queue_reports import QueueReports
from engine.server.usage_outbox import Account
from evenflow.engine.v1 import engine_pb2 as pb


class Calls:
    """Between the messages of a call and the intake."""

    def __init__(self, intake: Intake, reports: QueueReports) -> None:
        self._intake = intake
        self._reports = reports

    def enter(self, message: pb.GenerateRequest, metadata: abc.Mapping[str, str]) -> Call:
        """The call that `message` starts at once; `leave` it. Raises RefusedError and RequestTooLargeError."""
        if message.start.sampling.HasField("grammar"):
            raise InvalidFieldError("sampling.grammar", "has to be compiled: such a call has a stream of its own")
        engine = self._intake.engine
        return self._enter(convert.request_from_pb(message.start, engine.limits, engine.loop.now()), message, metadata)

    async def enter_alone(self, message: pb.GenerateRequest | None, metadata: abc.Mapping[str, str]) -> Call:
        """The same, of a call that may take its time: nobody waits behind it."""
        if message is None or not message.HasField("start"):
            raise InvalidFieldError("start", "must be the first message")
        request = await constraints.request_from_pb(message.start, self._intake.engine, self._intake.grammars)
        return self._enter(request, message, metadata)

    def _enter(self, request: Request, message: pb.GenerateRequest, metadata: abc.Mapping[str, str]) -> Call:
        start = message.start
        call = self._intake.enter(request, metadata, Account(start.ledger_id, start.usage_tag, start.sender_id))
        if (outlet := call.told_queue(start.reports_queue)) is not None:
            self._reports.watch(request.generation_id, outlet)
        return call

    def take_control(self, call: Call, message: pb.GenerateRequest) -> None:
        """What the gateway says later. Raises InvalidFieldError, and NotReadyError where the engine has failed."""
        if message.cancel.HasField("output_tokens"):
            call.num_kept_tokens = message.cancel.output_tokens
        control = convert.control_from_pb(message, call.mailbox, call.request.generation_id)
        self._intake.engine.loop.submit(control)

    def reject(self, call: Call, error: InvalidFieldError) -> None:
        """What the gateway said means nothing: the call ends with that."""
        self._intake.reject(call, error)

    def response(self, call: Call, update: Update) -> pb.GenerateResponse:
        """How the gateway is told of `update`, which is no refusal."""
        assert not isinstance(update, Refused), "a refusal is a status"
        if isinstance(update, Admitted):
            self._reports.pace.note()
            self._reports.forget(call.request.generation_id)
        response = convert.response_from_update(update, call.arrived_unix_ns)
        if isinstance(update, Finished):
            response.finished.error_fields.extend(fields_to_blame(update.error, call.request.sampling))
            response.finished.cancel_reason = pb.CancelReason.ValueType(call.cancel_reason)
        return response

    def leave(self, call: Call) -> None:
        """Nobody listens any more. A request that has not ended is aborted."""
        self._reports.forget(call.request.generation_id)
        self._intake.leave(call)
