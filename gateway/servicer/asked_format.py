"""What an output has to be, as a grammar for the engine, which judges it.

Here is only looked at whether it is of a size and, where it has to be JSON, whether it is.
"""

import json

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.engine_client import Grammar, GrammarKind
from gateway.servicer.check import Check

MAX_FORMAT_BYTES = 256 * 1024
_ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
_KINDS = {"json_schema": GrammarKind.JSON_SCHEMA, "regex": GrammarKind.REGEX, "lark": GrammarKind.LARK}


def grammar_from_pb(output_format: pb.OutputFormat, check: Check) -> Grammar | None:
    """None where the format asks for nothing in particular."""
    kind = output_format.WhichOneof("format")
    check.require(kind is not None, "set json_object, json_schema, regex or lark")
    if kind is None:
        return None
    if kind == "json_object":
        return _ANY_OBJECT if output_format.json_object else None
    text: str = getattr(output_format, kind)
    at = check.at(kind)
    is_sized = 1 <= len(text) <= MAX_FORMAT_BYTES and len(text.encode()) <= MAX_FORMAT_BYTES
    at.require(is_sized, f"must have 1 to {MAX_FORMAT_BYTES} bytes")
    if is_sized and kind == "json_schema":
        require_schema(text, at)
    return Grammar(_KINDS[kind], text)


def require_schema(text: str, check: Check) -> None:
    """`text` is a JSON object: whether it is a schema is the engine's to say."""
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    check.require(is_object, "must be a JSON schema, which is a JSON object")
