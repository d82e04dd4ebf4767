"""The formats with one JSON object a line.

evenflow  Mooncake's names, so that its readers can replay the file, and what they lack:
            timestamp (ms, may have a fraction), input_length, output_length     required
            tenant ("organization/team"; else extra.user)                        required
            hash_ids, block_size (512)                  what the prompt begins with, see Arrival.prefix_ids
            priority_class, cancel_after_ms, deadline_after_ms                   optional
mooncake  timestamp (ms), input_length, output_length, hash_ids (pieces of 512 tokens). Where its clock ticks every 3 s
          (the conversation trace), arrivals are spread over the tick: uniform, seeded, in file order, then sorted.
          Source: kvcache-ai/Mooncake, Qin et al., FAST 2025.
bailian   timestamp (s), input_length, output_length, chat_id, parent_chat_id, hash_ids (pieces of 16 tokens); a
          conversation is a chat with all that follow it. Source: alibaba-edu/qwen-bailian-usagetraces-anon.
"""

import json
from collections import abc
from contextlib import closing
from pathlib import Path
from typing import Any

from engine.core.types import NANOS_PER_MS
from engine.sim.json_text import parse_json
from engine.sim.traffic.errors import TraceError
from engine.sim.traffic.raw_rows import RawRow, length_of, nanos_of
from engine.sim.traffic.row import DEFAULT_CLASS, NANOS_PER_S, Arrival
from engine.sim.traffic.text_lines import text_lines

MOONCAKE_BLOCK_SIZE = 512
BAILIAN_BLOCK_SIZE = 16
MAX_KNOWN_CHATS = 200_000  # a chat whose parent is older than this many chats counts as a new conversation

Record = dict[str, Any]  # parsed JSON, judged field by field below


def evenflow_rows(path: Path) -> abc.Iterator[RawRow]:
    """Rows of our own format. Raises TraceError."""
    return _parsed(path, _evenflow_row)


def mooncake_rows(path: Path) -> abc.Iterator[RawRow]:
    """Rows of a Mooncake trace on its own clock. Raises TraceError."""
    return _parsed(path, _mooncake_row)


def bailian_rows(path: Path) -> abc.Iterator[RawRow]:
    """Rows of a Bailian trace. Raises TraceError."""
    root_by_chat: dict[str, str] = {}

    def parse(record: Record, line: int, row: int) -> RawRow:
        chat = str(_required(record, "chat_id"))
        parent = str(record.get("parent_chat_id", -1))
        root = root_by_chat[chat] = root_by_chat.get(parent, chat)
        if len(root_by_chat) > MAX_KNOWN_CHATS:
            del root_by_chat[next(iter(root_by_chat))]
        at_ns = nanos_of(_number(record, "timestamp"), "timestamp", NANOS_PER_S)
        return RawRow(line, row, at_ns, *_lengths(record), None, root, _hash_ids(record), BAILIAN_BLOCK_SIZE)

    return _parsed(path, parse)


def write_jsonl(arrivals: abc.Iterable[Arrival], path: Path) -> int:
    """The arrivals in our own format; returns how many."""
    num_rows = 0
    with path.open("w", encoding="utf-8") as file:
        for num_rows, arrival in enumerate(arrivals, start=1):  # noqa: B007 - counts
            file.write(json.dumps(_to_record(arrival), separators=(",", ":")) + "\n")
    return num_rows


def _to_record(arrival: Arrival) -> Record:
    record: Record = {
        "timestamp": arrival.at_ns / NANOS_PER_MS,
        "input_length": arrival.num_prompt_tokens,
        "output_length": arrival.num_output_tokens,
        "tenant": arrival.tenant,
        "extra": {"user": arrival.tenant},
    }
    if arrival.priority_class != DEFAULT_CLASS:
        record["priority_class"] = arrival.priority_class
    if arrival.prefix_ids:
        record |= {"hash_ids": arrival.prefix_ids, "block_size": arrival.prefix_block_size}
    if arrival.cancel_after_ns is not None:
        record["cancel_after_ms"] = arrival.cancel_after_ns / NANOS_PER_MS
    if arrival.deadline_after_ns is not None:
        record["deadline_after_ms"] = arrival.deadline_after_ns / NANOS_PER_MS
    return record


def _parsed(path: Path, parse: abc.Callable[[Record, int, int], RawRow]) -> abc.Iterator[RawRow]:
    row = 0
    with closing(text_lines(path)) as lines:
        for line_number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                record = parse_json(line)
                if not isinstance(record, dict):
                    raise ValueError("a line must hold one JSON object")
                raw = parse(record, line_number, row)
            except ValueError as error:
                raise TraceError(path, line_number, str(error)) from error
            yield raw
            row += 1


def _evenflow_row(record: Record, line: int, row: int) -> RawRow:
    extra = record.get("extra")
    tenant = record.get("tenant", extra.get("user") if isinstance(extra, dict) else None)
    if not isinstance(tenant, str) or not all(tenant.split("/")):
        raise ValueError(f'tenant must be a path like "organization/team", not {tenant!r}')
    ids = _hash_ids(record)
    block_size = length_of(_number({"block_size": MOONCAKE_BLOCK_SIZE, **record}, "block_size"), "block_size")
    if not block_size:
        raise ValueError("block_size must be at least 1")
    return RawRow(
        line,
        row,
        nanos_of(_number(record, "timestamp"), "timestamp", NANOS_PER_MS),
        *_lengths(record),
        tenant,
        _conversation(ids),
        ids,
        block_size if ids else 0,
        str(record.get("priority_class", DEFAULT_CLASS)),
        _after_ns(record, "cancel_after_ms"),
        _after_ns(record, "deadline_after_ms"),
    )


def _mooncake_row(record: Record, line: int, row: int) -> RawRow:
    at_ns = nanos_of(_number(record, "timestamp"), "timestamp", NANOS_PER_MS)
    ids = _hash_ids(record)
    return RawRow(line, row, at_ns, *_lengths(record), None, _conversation(ids), ids, MOONCAKE_BLOCK_SIZE if ids else 0)


def _conversation(hash_ids: tuple[int, ...]) -> str | None:
    """The second piece tells dialogues apart: the first one is a system prompt that all may share."""
    return str(hash_ids[1] if len(hash_ids) > 1 else hash_ids[0]) if hash_ids else None


def _lengths(record: Record) -> tuple[int, int]:
    return (
        length_of(_number(record, "input_length"), "input_length"),
        length_of(_number(record, "output_length"), "output_length"),
    )


def _hash_ids(record: Record) -> tuple[int, ...]:
    ids = record.get("hash_ids", ())
    if not isinstance(ids, list | tuple) or not all(type(item) is int for item in ids):
        raise ValueError("hash_ids must be a list of whole numbers")
    return tuple(ids)


def _after_ns(record: Record, name: str) -> int | None:
    return None if record.get(name) is None else nanos_of(_number(record, name), name, NANOS_PER_MS)


def _number(record: Record, name: str) -> Any:
    """What the record has there, which is judged elsewhere, but no text: "5" would be read as in a CSV file."""
    value = _required(record, name)
    if isinstance(value, str):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return value


def _required(record: Record, name: str) -> Any:
    if name not in record:
        raise ValueError(f"missing column {name}")
    return record[name]
