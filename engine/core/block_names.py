"""What a KV block is called: a hash of its tokens and of all tokens before them, under a salt.

Two blocks have one name exactly if the salt and all tokens up to their end are the same, so that their keys and values
are, too. Names of different salts never meet: a chain begins with its salt, in 128 bits of a cryptographic hash.
"""

import hashlib
from array import array
from collections import abc
from typing import NewType

from engine.core.types import Request

BlockName = NewType("BlockName", bytes)

NO_NAME = BlockName(b"")
NAME_BYTES = 16
ARRAY_TYPE = "q"  # signed, 64 bits
TOKEN_BYTES = array(ARRAY_TYPE).itemsize


def root_of(request: Request) -> BlockName:
    """Where the names of a request begin. One without a salt shares with its own tenant, never with a salt."""
    if request.cache_salt:
        return _hash(b"salt\0" + request.cache_salt)
    return _hash(b"tenant\0" + request.tenant_id.encode(errors="surrogatepass"))


def names_after(previous: BlockName, token_ids: abc.Sequence[int], block_size: int) -> list[BlockName]:
    """The names of the full blocks in `token_ids`, of which the first one follows the block called `previous`."""
    num_bytes = block_size * TOKEN_BYTES
    tokens = array(ARRAY_TYPE, token_ids).tobytes()
    names = []
    for end in range(num_bytes, len(tokens) + 1, num_bytes):
        previous = _hash(previous + tokens[end - num_bytes : end])
        names.append(previous)
    return names


def name_after(previous: BlockName, token_ids: abc.Sequence[int]) -> BlockName:
    """The name of the block that follows the one called `previous` and holds these tokens, if only they fill it."""
    return _hash(previous + array(ARRAY_TYPE, token_ids).tobytes())


def _hash(text: bytes) -> BlockName:
    return BlockName(hashlib.blake2b(text, digest_size=NAME_BYTES).digest())
