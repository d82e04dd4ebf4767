"""Names of models that nobody serves are said to be that, where the engines are known."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.served_models import models_of, tell_of_unserved
from tests.cli.command_line import CommandLine


@dataclass
class Engines:
    """Stands in for the admin service: it knows engines and their models."""

    models: tuple[str, ...]
    stub: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(GetSystemStatus=None))

    def call(self, _method: object, _request: object) -> pb.SystemStatus:
        return pb.SystemStatus(engines=[pb.EngineStatus(reachable=True, model=model) for model in self.models])


@pytest.mark.parametrize(
    ("served", "named", "told"),
    [
        (
            ("small", "large"),
            ("nosuch", "small"),
            "note: no engine serves a model 'nosuch' now; served are: large, small\n",
        ),
        (("small",), ("small", ""), ""),
        ((), ("nosuch",), ""),
    ],
)
def test_model_that_nobody_serves_is_told_of(capsys: pytest.CaptureFixture, served, named, told: str):
    tell_of_unserved(Engines(served), named)

    assert capsys.readouterr().err == told


def test_every_part_of_a_policy_can_name_a_model():
    policy = pb.QuotaPolicy(
        limits=[pb.QuotaLimit(model="a"), pb.QuotaLimit()],
        budgets=[pb.QuotaBudget(model="b")],
        cost_weights=[pb.CostWeights(model="c"), pb.CostWeights(model="a")],
    )

    assert models_of(policy) == ["a", "b", "c"]


async def test_setting_a_limit_tells_of_it(
    command_line: CommandLine, service, monkeypatch: pytest.MonkeyPatch, tmp_path
):
    asked: list[str] = []
    told = lambda _admin, models: asked.extend(models)  # noqa: E731 - stands in for a function
    for module in ("quota_policies", "quota", "policy_commands"):
        monkeypatch.setattr(f"gateway.cli.{module}.tell_of_unserved", told)
    file = tmp_path / "policies.yaml"
    file.write_text("organizations: {acme: {quota: {limits: ['requests=5:model=c']}}}")

    await command_line("orgs", "create", "acme")
    await command_line("quota-policies", "update", "acme", "--limit", "total_tokens=100:model=a")
    grant = ("quota", "grant", "acme", "--reason", "r", "--until", "1h", "--limit", "total_tokens=200:model=a")
    await command_line(*grant)
    await command_line("quota-policies", "apply", "-f", str(file))

    assert [model for model in asked if model] == ["a", "a", "c"]
