"""One machine from the first start to the last signal, with the real model, through the whole path.

The tests of this module share one `evenflow up`, and what its setup made. Those that end it come last.
"""

import asyncio
import collections
import re
import signal
import threading
import time
import urllib.request
from collections import abc
from pathlib import Path

import grpc
import httpx2
import openai
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from transformers import AutoTokenizer

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1.generation_pb2_grpc import GenerationServiceStub
from tests.e2e.installation import Installation
from tests.gateway.console.visitors import Visitor, hidden_fields, texts
from tests.gateway.refusals import refusal_of

pytestmark = [pytest.mark.timeout(240), pytest.mark.shared_start]

PROMPT = "Once upon a time"
TOGETHER = re.compile(r"Together (\d+)")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> abc.Iterator[Installation]:
    """A running installation with a tenant that was served, whose key `chat` finds."""
    running = Installation(tmp_path_factory.mktemp("e2e") / "data")
    running.up()
    for arguments in (
        ("orgs", "create", "acme"),
        ("teams", "create", "acme/search"),
        ("keys", "create", "--team", "acme/search", "--save"),
        ("chat", "Say hello.", "--max-tokens", "2"),
    ):
        ran = running.call(*arguments)
        assert ran.exit_code == 0, ran.stderr
    yield running
    if running.is_running:
        running.stop()


def stream(installation: Installation, num_tokens: int) -> abc.Iterator[pb.StreamGenerateResponse]:
    """A greedy answer of exactly `num_tokens`."""
    spec = pb.GenerationSpec(
        text=PROMPT,
        sampling=pb.SamplingOptions(temperature=0),
        stopping=pb.StoppingOptions(max_output_tokens=num_tokens, ignore_eos=True),
    )
    with grpc.insecure_channel(installation.address) as channel:
        metadata = (("authorization", f"Bearer {installation.api_key}"),)
        yield from GenerationServiceStub(channel).StreamGenerate(
            pb.StreamGenerateRequest(spec=spec), metadata=metadata, timeout=120
        )


def test_new_tenant_gets_an_answer(installation: Installation):
    ran = installation.run("chat", "Say hello.", "--max-tokens", "8", "--temperature", "0")

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()


def test_status_counts_the_tenants_tokens(installation: Installation):
    status = installation.call("status", "-o", "json").json()

    (engine,) = status["engines"]
    (tenant,) = engine["tenants"]
    assert (engine["reachable"], engine["scheduling_policy"], engine["num_device_blocks"]) == (True, "fair", "256")
    assert tenant["team"] == "organizations/acme/teams/search"
    assert int(tenant["output_tokens"]) >= 1


def test_openais_client_gets_over_the_url_that_status_tells_what_grpc_gives(installation: Installation):
    url = installation.call("status", "-o", "json").json()["http_url"]
    over_grpc = "".join(event.token_delta.text for event in stream(installation, 8))

    with openai.OpenAI(base_url=url, api_key=installation.api_key) as client:
        (model,) = client.models.list()
        over_http = client.completions.create(
            model=model.id, prompt=PROMPT, temperature=0, max_tokens=8, extra_body={"ignore_eos": True}
        )

    assert over_http.choices[0].text == over_grpc
    assert over_http.usage.completion_tokens == 8
    assert f"take {url} as base URL" in installation.log()


def test_a_beam_search_finds_the_same_at_both_doors(installation: Installation):
    url = installation.call("status", "-o", "json").json()["http_url"]
    spec = pb.GenerationSpec(
        text=PROMPT,
        beam_search=pb.BeamSearchOptions(width=3, num_returned=2),
        stopping=pb.StoppingOptions(max_output_tokens=5),
    )
    with grpc.insecure_channel(installation.address) as channel:
        metadata = (("authorization", f"Bearer {installation.api_key}"),)
        over_grpc = GenerationServiceStub(channel).Generate(
            pb.GenerateRequest(spec=spec), metadata=metadata, timeout=120
        )

    with openai.OpenAI(base_url=url, api_key=installation.api_key) as client:
        (model,) = client.models.list()
        over_http = client.completions.create(
            model=model.id, prompt=PROMPT, n=2, max_tokens=5, extra_body={"beam_width": 3}
        )

    assert [choice.text for choice in over_http.choices] == [output.text for output in over_grpc.outputs]
    assert over_grpc.outputs[0].score > over_grpc.outputs[1].score
    assert over_http.usage.completion_tokens == over_grpc.usage.output_tokens <= 3 * 5


def test_the_exported_tokenizer_counts_as_the_gateway_does(installation: Installation, tmp_path: Path):
    url = installation.call("status", "-o", "json").json()["http_url"].removesuffix("/v1")
    ran = installation.call("model", "export-tokenizer", str(tmp_path))
    assert ran.exit_code == 0, ran.stderr
    exported = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    messages = [{"role": "user", "content": "Naïve café, 東京?"}]

    with openai.OpenAI(base_url=url, api_key=installation.api_key) as client:
        (model,) = client.with_options(base_url=f"{url}/v1").models.list()
        chat = client.post("/tokenize", body={"model": model.id, "messages": messages}, cast_to=dict)
        text = client.post("/tokenize", body={"model": model.id, "prompt": PROMPT}, cast_to=dict)

    assert exported.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == chat["tokens"]
    assert exported(PROMPT).input_ids == text["tokens"]
    assert exported.model_max_length == text["max_model_len"]


def test_metrics_name_the_tenant_and_what_it_was_served(installation: Installation):
    address = installation.call("status", "-o", "json").json()["metrics_address"]

    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as page:
        lines = page.read().decode().splitlines()

    (served,) = [line for line in lines if line.startswith("evenflow_tenant_tokens_total{") and 'kind="output"' in line]
    assert 'tenant="acme/search"' in served
    assert float(served.split()[-1]) >= 1


def test_engine_has_a_page_of_its_own_and_up_tells_where_both_are(installation: Installation):
    status = installation.call("status", "-o", "json").json()
    addresses = status["metrics_address"], status["engines"][0]["metrics_address"]

    with urllib.request.urlopen(f"http://{addresses[1]}/metrics", timeout=20) as page:
        lines = page.read().decode().splitlines()

    (output,) = [line for line in lines if line.startswith('evenflow_engine_tokens_total{kind="output"}')]
    assert float(output.split()[1]) >= 1
    told = "Prometheus reads http://{}/metrics and http://{}/metrics.".format(*addresses)
    assert told in " ".join(installation.log().split())


def test_policy_is_switched_while_the_engine_runs(installation: Installation):
    for name, options in (("fcfs", ()), ("fair", ("--option", "mode=strict")), ("fair", ())):
        ran = installation.call("engines", "set-policy", name, *options)
        assert ran.exit_code == 0, ran.stderr
        assert installation.call("chat", "Say hello.", "--max-tokens", "2").exit_code == 0
        (engine,) = installation.call("status", "-o", "json").json()["engines"]
        assert (engine["scheduling_policy"], engine["policy_fault"]) == (name, "")

    refused = installation.call("engines", "set-policy", "nobody", "--validate-only")
    assert (refused.exit_code, "there is no policy nobody" in refused.stderr) == (1, True)


def test_stranger_can_call_it_by_reflection_alone(installation: Installation):
    with grpc.insecure_channel(installation.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "evenflow.inference.v1.GenerationService" in database.get_services()
        method = (
            DescriptorPool(database)
            .FindServiceByName("evenflow.inference.v1.GenerationService")
            .FindMethodByName("CountTokens")
        )
        request = GetMessageClass(method.input_type)(text="Once upon a time")
        answer = GetMessageClass(method.output_type)
        call = channel.unary_unary(
            "/evenflow.inference.v1.GenerationService/CountTokens",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )

        counted = call(request, metadata=(("authorization", f"Bearer {installation.api_key}"),), timeout=20)

    assert counted.input_tokens == 4


@pytest.mark.slow
async def test_console_previews_a_policy_on_what_was_served_at_the_pace_of_the_engine_that_runs(
    installation: Installation,
):
    for _ in range(3):
        list(stream(installation, 4))
    url = installation.call("status", "-o", "json").json()["http_url"].removesuffix("/v1")
    path = "/console/tenants/acme/search/policy"
    hourly = {"limits-0-dimension": "REQUESTS", "limits-0-amount": "1", "limits-0-burst": "1", "limits-0-period": "1h"}

    async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
        ada = Visitor(client, url)
        assert (await ada.sign_in((installation.data_dir / "admin.key").read_text().strip())).status_code == 303
        # The ledger is written behind.
        while not (found := TOGETHER.search(texts(await ada.get("/console/usage")))) or int(found[1]) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        form = hidden_fields(await ada.get(path)) | {"action": "preview", "weight": "1", "window": "1h"} | hourly
        told = texts(await ada.send(path, form))

    num_requests = int(re.search(r"(\d+) requests and 0 refusals of the past", told)[1])
    assert num_requests >= 4
    assert f"acme/search few requests {num_requests} → 1 0 → {num_requests - 1}" in told
    assert f"{num_requests - 1} refused by requests of acme/search" in told
    assert "The engine has not measured its steps yet" not in told
    assert "There is no result." not in told


def test_second_up_says_that_and_where_the_first_one_runs(installation: Installation):
    ran = installation.run("up")

    assert installation.process is not None
    assert ran.returncode == 1
    assert f"already running in {installation.data_dir}: process {installation.process.pid}" in ran.stderr
    assert installation.address in ran.stderr


def test_killed_engine_is_started_again_and_serves(installation: Installation):
    """Who waits for an answer is told by name that the engine was lost, and that the same call can succeed."""
    engine = installation.child("engine")
    messages = stream(installation, 4000)
    assert any(message.HasField("token_delta") for message in messages)

    engine.kill()

    with pytest.raises(grpc.RpcError) as lost:
        collections.deque(messages, maxlen=0)
    refusal = refusal_of(lost.value)
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_LOST")
    assert refusal.retry is not None
    # Refused with NO_ENGINE until it is back.
    while (ran := installation.call("chat", "Say hello.", "--max-tokens", "2")).exit_code != 0:
        assert "NO_ENGINE" in ran.stderr or "ENGINE_LOST" in ran.stderr, ran.stderr
        time.sleep(0.1)
    assert installation.child("engine").pid != engine.pid
    assert "engine ended by signal 9; starting again in 0.5 s" in installation.log()


def test_sigterm_lets_a_running_stream_finish(installation: Installation):
    num_tokens = 24
    messages, has_begun = [], threading.Event()

    def read() -> None:
        for message in stream(installation, num_tokens):
            messages.append(message)
            if message.HasField("token_delta"):
                has_begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert has_begun.wait(60)

    code = installation.stop()

    reader.join(60)
    assert messages[-1].finish.usage.output_tokens == num_tokens
    assert code == 0
    assert installation.survivors() == []
    assert not (installation.data_dir / "endpoint").exists()


def test_restart_keeps_tenants_and_keys(installation: Installation):
    if installation.is_running:  # the test before ran elsewhere
        installation.stop()
    installation.up()

    ran = installation.call("chat", "Say hello.", "--max-tokens", "2")
    orgs = installation.call("orgs", "list", "-o", "json").json()

    assert ran.exit_code == 0, ran.stderr
    assert [org["name"] for org in orgs] == ["organizations/acme"]


def test_nothing_outlives_an_up_that_was_killed(installation: Installation):
    if not installation.is_running:
        installation.up()
    assert installation.process is not None
    assert len(installation.family) >= 3

    installation.process.send_signal(signal.SIGKILL)
    installation.process.wait(10)

    assert installation.survivors() == []
