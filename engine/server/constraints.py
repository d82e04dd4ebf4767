"""Requests whose outputs are held to a grammar, which is compiled while the engine's thread goes on."""

from dataclasses import replace

from engine.core.types import Request
from engine.errors import InvalidFieldError
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.dead_ends import LIST_FIELD
from engine.grammars.matcher import Constraint
from engine.server import convert
from engine.server.intake import Engine
from engine.server.sampling_messages import grammar_from_pb
from evenflow.engine.v1 import engine_pb2 as pb


async def request_from_pb(start: pb.StartGeneration, engine: Engine, grammars: GrammarCompiler) -> Request:
    """The request that arrives now, with its grammar ready. Raises what `convert.request_from_pb` does,
    InvalidFieldError for a grammar that is no good or that the listed tokens cannot begin, and GrammarsBusyError."""
    request = convert.request_from_pb(start, engine.limits, engine.loop.now())
    source = grammar_from_pb(start.sampling)
    if source is None:
        return request
    compiled = await grammars.compile(source, request.tenant_id)
    listed = request.sampling.allowed_token_ids
    if listed is not None and not compiled.has_first(listed):
        raise InvalidFieldError(LIST_FIELD, "has no token that the output's format may begin with")
    constraint = Constraint(compiled, ends_late=start.sampling.ignore_eos)
    return replace(request, sampling=replace(request.sampling, constraint=constraint))
