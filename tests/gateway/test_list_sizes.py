"""No list or map of a request is longer than its maximum: refused by name, before anything reads it.

The lists are those of the services' descriptors, so a new one is tried as soon as it is there.
"""

from collections import abc

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.errors import InvalidFieldError
from gateway.interceptors import list_sizes
from gateway.interceptors.list_sizes import MAX_ENTRIES, READ_BY_SERVICE, maximum, require_short_lists
from tests.gateway.fake_engine import CONTEXT_TOKENS
from tests.gateway.messages import method_descriptors
from tests.gateway.test_fuzz import ADMIN, SERVICES
from tests.gateway.world import Tenant, World, refused

# What the service says of its own messages; a list of them that is not here has no maximum.
OF_PROMPTS = {
    "ChatPrompt.messages": 2048,
    "ChatPrompt.tools": 128,
    "ChatMessage.tool_calls": 128,
    "TokenPrompt.ids": CONTEXT_TOKENS,
    "SamplingOptions.logit_bias": 1024,
    "SamplingOptions.allowed_token_ids": 65_536,
    "StoppingOptions.stop": 16,
    "StoppingOptions.stop_token_ids": 64,
    "AdmissionOptions.labels": 8,
}
Path = tuple[FieldDescriptor, ...]


def lists_of(message: Descriptor) -> abc.Iterator[Path]:
    """The way to each list and map of the message."""
    for field in message.fields:
        if field.is_repeated:
            yield (field,)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from ((field, *path) for path in lists_of(field.message_type))


def too_long(request: Descriptor, path: Path) -> tuple[Message, str]:
    """A request whose list at `path` has one entry too many, and what a refusal calls that list."""
    message = message_factory.GetMessageClass(request)()
    place, names, limit = message, [], most(request, path)
    for field in path[:-1]:
        names.append(f"{field.name}[0]" if field.is_repeated else field.name)
        place = getattr(place, field.name).add() if field.is_repeated else getattr(place, field.name)
        place.SetInParent()
    fill(place, path[-1], limit + 1)
    return message, ".".join([*names, path[-1].name])


def most(request: Descriptor, path: Path) -> int:
    messages = {request.full_name, *(field.message_type.full_name for field in path if field.message_type)}
    if messages.isdisjoint(READ_BY_SERVICE):
        return maximum(path[-1])
    return OF_PROMPTS[path[-1].full_name.removeprefix("evenflow.inference.v1.")]


def fill(place: Message, field: FieldDescriptor, size: int) -> None:
    entries, held = getattr(place, field.name), field.message_type
    if held is not None and held.GetOptions().map_entry:
        is_text = held.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
        entries.update({str(number): "" for number in range(size)} if is_text else dict.fromkeys(range(size), 1))
    elif held is not None:
        for _ in range(size):
            entries.add()
    elif field.type == FieldDescriptor.TYPE_STRING:
        entries.extend(map(str, range(size)))
    else:
        entries.extend([1] * size)


LISTS = [(method, path) for method in method_descriptors(SERVICES) for path in lists_of(method.input_type)]


def call(caller: Tenant, method: MethodDescriptor, request: Message):
    answer = message_factory.GetMessageClass(method.output_type)
    make = caller.channel.unary_stream if method.server_streaming else caller.channel.unary_unary
    name = f"/{method.containing_service.full_name}/{method.name}"
    return make(name, type(request).SerializeToString, answer.FromString)(request, metadata=caller.metadata)


async def test_every_list_of_every_request_has_a_maximum(world: World, tenant: Tenant) -> None:
    admin = await world.administrator()
    assert len(LISTS) > 40
    for method, path in LISTS:
        request, name = too_long(method.input_type, path)
        caller = admin if method.full_name.startswith(ADMIN) else tenant

        refusal = await refused(call(caller, method, request))

        assert refusal.code.name == "INVALID_ARGUMENT", (method.full_name, name)
        assert name in refusal.fields, (method.full_name, refusal)


@pytest.mark.parametrize("size", [0, MAX_ENTRIES])
def test_a_list_of_the_maximum_is_taken(size: int) -> None:
    require_short_lists(pb.UpdateApiKeyRequest(api_key=pb.ApiKey(ip_cidrs=["10.0.0.0/8"] * size)))


def test_many_short_lists_are_as_many_entries_as_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_sizes, "MAX_ENTRIES_IN_ALL", 12)
    entry = pb.PolicyEntry(quota_policy=pb.QuotaPolicy(limits=[pb.QuotaLimit()] * 3))

    require_short_lists(pb.ApplyPoliciesRequest(entries=[entry] * 3))

    with pytest.raises(InvalidFieldError, match="at most 12 entries together"):
        require_short_lists(pb.ApplyPoliciesRequest(entries=[entry] * 4))
