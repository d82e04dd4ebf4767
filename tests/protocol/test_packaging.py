"""The protocol modules are ours and importable under the one root that the design names."""

from pathlib import Path

import pytest

import evenflow
from evenflow.admin.v1 import admin_pb2
from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2, model_pb2, quota_pb2

ROOT = Path(__file__).resolve().parents[2]
SERVICES = (
    (generation_pb2, "GenerationService"),
    (model_pb2, "ModelService"),
    (quota_pb2, "QuotaService"),
    (engine_pb2, "EngineService"),
    (admin_pb2, "AdminService"),
)


def test_protocol_package_is_the_one_in_this_tree() -> None:
    assert Path(evenflow.__file__).parent == ROOT / "proto" / "evenflow"


@pytest.mark.parametrize(("module", "service"), SERVICES, ids=[name for _, name in SERVICES])
def test_each_service_is_served_from_its_own_package(module, service) -> None:
    descriptor = module.DESCRIPTOR.services_by_name[service]
    assert descriptor.methods, f"{service} has no method"


@pytest.mark.parametrize(
    "module", [generation_pb2, model_pb2, quota_pb2, engine_pb2, admin_pb2], ids=lambda module: module.__name__
)
def test_every_enum_begins_with_unspecified(module) -> None:
    for enum in module.DESCRIPTOR.enum_types_by_name.values():
        zero = enum.values_by_number[0].name
        assert zero.endswith("_UNSPECIFIED"), f"{enum.full_name} begins with {zero}"
