"""`evenflow.engine.v1.EngineService`: one coroutine per call, between the wire and the intake. Decides nothing.

Messages are parsed here, not by gRPC, so that one that cannot be decoded is refused like any other bad request.
"""

import asyncio
import functools
from collections import abc
from typing import Concatenate, ParamSpec, TypeVar

import grpc
import structlog

from engine.core.errors import DuplicateRequestError, RequestTooLargeError
from engine.core.events import Finished
from engine.core.queue_position import Explanation, QueueOrder
from engine.errors import InvalidFieldError, NotReadyError, RefusedError
from engine.loop_messages import (
    Command,
    Explain,
    LoopStats,
    Outlet,
    ReadQueue,
    ReadRequests,
    ReadStats,
    Refusal,
    Refused,
    RequestPage,
    SetPolicies,
    Update,
    UpdateClasses,
    UpdateNodes,
)
from engine.server import convert, incoming, policy_messages, request_messages
from engine.server.calls import Calls
from engine.server.figures import Figures, model_info_to_pb, stats_to_pb
from engine.server.intake import Call, Intake
from engine.server.many_calls import ManyCalls
from engine.server.queue_reports import QueueReports
from engine.server.reply import Reply
from engine.server.served_lately import ServedLately
from engine.server.status import refusal_to_pb, status_of
from evenflow.engine.v1 import engine_pb2 as pb

log = structlog.get_logger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["EngineService"].full_name
START_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 30.0  # the longest step that a loop may take and still answer

Context = grpc.aio.ServicerContext[bytes, bytes]

P = ParamSpec("P")
T = TypeVar("T")
Method = abc.Callable[Concatenate["EngineServicer", P], abc.Awaitable[T]]


def _refusals_become_statuses(method: "Method[[T, Context], bytes | None]") -> "Method[[T, Context], bytes | None]":
    @functools.wraps(method)
    async def answered(self: "EngineServicer", argument: T, context: Context) -> bytes | None:
        try:
            return await method(self, argument, context)
        except (RefusedError, DuplicateRequestError, RequestTooLargeError) as error:
            log.info("call refused", method=method.__name__, error=str(error))
            await context.abort_with_status(status_of(error, self.max_model_len))

    return answered


class EngineServicer:
    """The service's methods, bytes in and bytes out; a refusal becomes the call's status."""

    def __init__(self, intake: Intake, metrics_address: abc.Callable[[], str]) -> None:
        """`metrics_address` says what gateways are told of where the metrics are."""
        self._intake = intake
        self._metrics_address = metrics_address
        self._reports = QueueReports(self._queue_order)
        self._calls = Calls(intake, self._reports)
        self._many: set[ManyCalls] = set()
        self._lately = ServedLately()

    @property
    def max_model_len(self) -> int:
        """The model's context; 0 while there is no model."""
        try:
            return self._intake.engine.config.max_model_len
        except NotReadyError:
            return 0

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server needs to serve this."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Generate": grpc.stream_stream_rpc_method_handler(self.generate),
                "GenerateMany": grpc.stream_stream_rpc_method_handler(self.generate_many),
                "GetModelInfo": grpc.unary_unary_rpc_method_handler(self.get_model_info),
                "GetStats": grpc.unary_unary_rpc_method_handler(self.get_stats),
                "SetSchedulingPolicy": grpc.unary_unary_rpc_method_handler(self.set_scheduling_policy),
                "UpdateNodes": grpc.unary_unary_rpc_method_handler(self.update_nodes),
                "UpdateClasses": grpc.unary_unary_rpc_method_handler(self.update_classes),
                "ListRequests": grpc.unary_unary_rpc_method_handler(self.list_requests),
                "CancelRequests": grpc.unary_unary_rpc_method_handler(self.cancel_requests),
                "ExplainRequest": grpc.unary_unary_rpc_method_handler(self.explain_request),
                "StreamUsage": grpc.stream_stream_rpc_method_handler(self.stream_usage),
                "Drain": grpc.unary_unary_rpc_method_handler(self.drain),
            },
        )

    @_refusals_become_statuses
    async def generate(self, _messages: object, context: Context) -> None:
        """One request, from `start` to `finished`. A call that is cancelled or cut aborts its request."""
        call = await self._enter(context)
        try:
            async with asyncio.TaskGroup() as tasks:
                controls = tasks.create_task(self._take_controls(call, context))
                refusal = await self._write_updates(call, context)
                controls.cancel()
        finally:
            self._calls.leave(call)
        if refusal is not None:
            raise refusal

    @_refusals_become_statuses
    async def generate_many(self, _messages: object, context: Context) -> None:
        """The same for all requests of a gateway."""
        many = ManyCalls(self._calls, context, lambda error: refusal_to_pb(error, self.max_model_len))
        self._many.add(many)
        try:
            await many.run()
        finally:
            self._many.discard(many)

    def close(self) -> None:
        """Streams that are no request's end, once everything is said."""
        self._intake.usage.close()
        for many in self._many:
            many.close()

    @_refusals_become_statuses
    async def get_model_info(self, data: bytes, _context: Context) -> bytes:
        """What the gateway needs to know of the model."""
        convert.check_protocol_version(convert.parse(pb.GetModelInfoRequest, data).protocol_version)
        engine = self._intake.engine
        return model_info_to_pb(engine.model, engine.config).SerializeToString()

    @_refusals_become_statuses
    async def get_stats(self, data: bytes, _context: Context) -> bytes:
        """The figures between two steps."""
        convert.parse(pb.GetStatsRequest, data)
        # Thousands of tenants take longer than other calls should have to wait.
        figures = await self.figures()
        return await asyncio.to_thread(lambda: stats_to_pb(figures, self._lately).SerializeToString())

    async def figures(self) -> Figures:
        """The same for whoever is in this process. Raises NotReadyError."""
        stats = await self._ask(ReadStats)
        assert isinstance(stats, LoopStats), "what ReadStats is answered with"
        wait_ns = self._reports.newcomer_wait_ns(stats.scheduler.num_waiting)
        return Figures.of(self._intake, stats, wait_ns, self._metrics_address())

    @_refusals_become_statuses
    async def set_scheduling_policy(self, data: bytes, _context: Context) -> bytes:
        """The engine decides by the policies that the message names, or could."""
        request = convert.parse(pb.SetSchedulingPolicyRequest, data)
        engine = self._intake.engine
        switch = await asyncio.to_thread(policy_messages.load_switch, request, engine.policies)
        if not request.validate_only:
            # The engine switches even if the caller has gone away meanwhile, and then its names must be the new ones.
            await asyncio.shield(asyncio.ensure_future(self._switch(switch)))
        return pb.SetSchedulingPolicyResponse(
            previous_name=engine.scheduling_policy,
            previous_preemption_name=engine.preemption_policy,
            previous_options=engine.scheduling_options,
            previous_preemption_options=engine.preemption_options,
        ).SerializeToString()

    @_refusals_become_statuses
    async def update_nodes(self, data: bytes, _context: Context) -> bytes:
        """The weights hold from the next step on."""
        updates = policy_messages.node_updates_from_pb(convert.parse(pb.UpdateNodesRequest, data))
        self._intake.engine.loop.submit(UpdateNodes(updates))
        return pb.UpdateNodesResponse().SerializeToString()

    @_refusals_become_statuses
    async def update_classes(self, data: bytes, _context: Context) -> bytes:
        """The classes hold from the next step on."""
        request = convert.parse(pb.UpdateClassesRequest, data)
        classes = policy_messages.classes_from_pb(request)
        self._intake.engine.loop.submit(UpdateClasses(classes, request.revision))
        return pb.UpdateClassesResponse().SerializeToString()

    @_refusals_become_statuses
    async def list_requests(self, data: bytes, _context: Context) -> bytes:
        """The unfinished requests, a page at a time."""
        after, limit = request_messages.page_from_pb(convert.parse(pb.ListRequestsRequest, data))
        page = await self._ask(lambda reply: ReadRequests(reply, after, limit))
        assert isinstance(page, RequestPage), "what ReadRequests is answered with"
        return request_messages.page_to_pb(page).SerializeToString()

    @_refusals_become_statuses
    async def cancel_requests(self, data: bytes, _context: Context) -> bytes:
        """Requests of any stream end; each tells why in its last message."""
        request = convert.parse(pb.CancelRequestsRequest, data)
        generation_ids = self._intake.cancel(request_messages.selection_from_pb(request), request.reason)
        return pb.CancelRequestsResponse(generation_ids=generation_ids).SerializeToString()

    @_refusals_become_statuses
    async def explain_request(self, data: bytes, _context: Context) -> bytes:
        """Why one of them stands where it stands."""
        generation_id = convert.parse(pb.ExplainRequestRequest, data).generation_id
        told = await self._ask(lambda reply: Explain(reply, generation_id))
        assert isinstance(told, Explanation), "what Explain is answered with"
        queued = self._reports.placed(told.position) if told.is_queued else None
        policy = self._intake.engine.scheduling_policy
        return request_messages.explanation_to_pb(told, queued, policy).SerializeToString()

    @_refusals_become_statuses
    async def stream_usage(self, _messages: object, context: Context) -> None:
        """What a ledger is owed, for as long as its keeper listens, or until the engine stops."""
        first = await incoming.read_as(pb.StreamUsageRequest, context)
        if first is None or not 0 < len(first.ledger_id) <= convert.MAX_ID_CHARACTERS:
            raise InvalidFieldError("ledger_id", f"must have 1 to {convert.MAX_ID_CHARACTERS} characters")
        call = self._intake.usage.open(first.ledger_id)
        acknowledging = asyncio.create_task(incoming.take_acknowledgements(call, context))
        try:
            while usages := await call.take():
                for usage in usages:
                    await context.write(usage)
        finally:
            acknowledging.cancel()
            call.close()

    @_refusals_become_statuses
    async def drain(self, data: bytes, _context: Context) -> bytes:
        """No request is accepted any more, and every accepted one has ended."""
        convert.parse(pb.DrainRequest, data)
        num_before = self._intake.num_finished
        await self._intake.close()
        await self._intake.wait_idle()
        return pb.DrainResponse(finished_count=self._intake.num_finished - num_before).SerializeToString()

    async def _switch(self, switch: policy_messages.PolicySwitch) -> None:
        choices = switch.scheduling_choice, switch.preemption_choice
        await self._ask(lambda reply: SetPolicies(reply, switch.scheduling, switch.preemption, *choices))
        self._intake.note_policies(*choices)
        log.info("policies switched", scheduling=choices[0], preemption=choices[1])

    async def _queue_order(self) -> QueueOrder:
        order = await self._ask(ReadQueue)
        assert isinstance(order, QueueOrder), "what ReadQueue is answered with"
        return order

    async def _ask(self, command: abc.Callable[[Outlet], Command]) -> Update:
        """The engine thread's answer to a command, which comes between two steps. Raises what it refuses with."""
        reply = Reply()
        self._intake.engine.loop.submit(command(reply))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await reply.update
        except TimeoutError:
            raise NotReadyError("the engine does not answer") from None
        if isinstance(answer, Refused):
            raise answer.error
        return answer

    async def _enter(self, context: Context) -> Call:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                message = await incoming.read(context)
        except TimeoutError:
            raise InvalidFieldError("start", f"did not come within {START_TIMEOUT_S:g} s") from None
        return await self._calls.enter_alone(message, incoming.trace_metadata(context))

    async def _write_updates(self, call: Call, context: Context) -> Refusal | None:
        """Write what happens to the request until its end; returns the refusal if that is how it ends."""
        while True:
            for update in await call.mailbox.take():
                if isinstance(update, Refused):
                    return update.error
                await context.write(self._calls.response(call, update).SerializeToString())
                if isinstance(update, Finished):
                    return None

    async def _take_controls(self, call: Call, context: Context) -> None:
        """Hand in what the gateway says, until it says no more. Its end is not the request's."""
        try:
            while (message := await incoming.read(context)) is not None:
                self._calls.take_control(call, message)
        except InvalidFieldError as error:
            self._calls.reject(call, error)
        except NotReadyError:
            return  # the engine has failed, which ends the call itself
