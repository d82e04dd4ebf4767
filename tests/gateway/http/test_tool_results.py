"""What came of a call, sent back: it belongs to a call that is there."""

import httpx2
import pytest

from tests.gateway.fake_engine import MODEL
from tests.gateway.world import World

HI = [{"role": "user", "content": "hi"}]
CALLED = [
    *HI,
    {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
    },
]
ANSWERED = {"role": "tool", "tool_call_id": "1", "content": "noon"}


async def test_a_result_may_leave_open_which_call_it_is_of(http: httpx2.AsyncClient, world: World) -> None:
    messages = [*CALLED, {"role": "tool", "content": "noon"}]
    response = await http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})

    assert response.status_code == 200, response.text
    assert b"noon" in bytes(world.engine.calls[0].start.prompt_token_ids)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(
    ("messages", "index"),
    [([*HI, ANSWERED], 1), ([*CALLED, ANSWERED | {"tool_call_id": "2"}], 2), ([*HI, ANSWERED, *CALLED], 1)],
)
async def test_a_result_of_no_call_before_it_is_neither_answered_nor_counted(
    shared_http: httpx2.AsyncClient, shared_world: World, path: str, messages: list, index: int
) -> None:
    response = await shared_http.post(path, json={"model": MODEL, "messages": messages})

    assert (response.status_code, response.json()["error"]["param"]) == (400, f"messages[{index}].tool_call_id")
    assert not shared_world.engine.calls
