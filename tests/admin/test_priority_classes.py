"""Priority classes: made, changed, in force at the engines at once, and gone when nobody names them."""

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.propagation import tell
from gateway.store.snapshot import EMPTY_SNAPSHOT
from tests.admin.service import AdminService, Refused


async def create(service: AdminService, name: str = "urgent", **fields) -> pb.PriorityClass:
    request = pb.CreatePriorityClassRequest(priority_class_id=name, priority_class=pb.PriorityClass(**fields))
    return await service.call(service.stub.CreatePriorityClass, request)


async def names(service: AdminService, **fields) -> list[str]:
    listed = await service.call(service.stub.ListPriorityClasses, pb.ListPriorityClassesRequest(**fields))
    return [item.name.partition("/")[2] for item in listed.priority_classes]


async def test_class_is_created_read_and_listed_by_rank(service: AdminService):
    wait = Duration()
    wait.FromTimedelta(timedelta(seconds=90))

    made = await create(service, rank=50, min_share=0.25, preemptible=True, max_queue_wait=wait)
    found = await service.call(service.stub.GetPriorityClass, pb.GetPriorityClassRequest(name=made.name))

    assert found == made
    assert (made.rank, made.min_share, made.preemptible, made.max_queue_wait) == (50, 0.25, True, wait)
    assert await names(service) == ["priority", "urgent", "default", "batch"]
    assert await names(service, order_by="name desc") == ["urgent", "priority", "default", "batch"]
    assert await names(service, filter="rank < 100") == ["priority", "urgent"]


async def test_update_changes_only_what_its_mask_names(service: AdminService):
    made = await create(service, rank=50, preemptible=True)

    changed = pb.PriorityClass(name=made.name, min_share=0.1, rank=7)
    request = pb.UpdatePriorityClassRequest(priority_class=changed, update_mask=FieldMask(paths=["min_share"]))
    updated = await service.call(service.stub.UpdatePriorityClass, request)

    assert (updated.rank, updated.min_share, updated.preemptible) == (50, 0.1, True)
    assert updated.etag != made.etag


async def test_bad_values_are_refused_by_their_path(service: AdminService):
    wait = Duration(seconds=-1)
    for fields, path in (
        ({"rank": -1}, "priority_class.rank"),
        ({"min_share": 1.5}, "priority_class.min_share"),
        ({"min_share": float("nan")}, "priority_class.min_share"),
        ({"max_queue_wait": wait}, "priority_class.max_queue_wait"),
    ):
        request = pb.CreatePriorityClassRequest(priority_class_id="x", priority_class=pb.PriorityClass(**fields))
        refused = await service.refused(service.stub.CreatePriorityClass, request)
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", (path,)), fields


async def test_classes_cannot_be_promised_more_than_the_engine(service: AdminService):
    await create(service, "a", min_share=0.7)
    request = pb.CreatePriorityClassRequest(priority_class_id="b", priority_class=pb.PriorityClass(min_share=0.4))

    refused = await service.refused(service.stub.CreatePriorityClass, request)
    await create(service, "b", min_share=0.3)

    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "PRECONDITION_FAILED")


async def test_class_that_somebody_may_ask_for_is_not_deleted(service: AdminService):
    made = await create(service)
    await service.create_org()
    await service.create_team(priority_class_grants=[made.name])
    request = pb.DeletePriorityClassRequest(name=made.name)

    refused = await service.refused(service.stub.DeletePriorityClass, request)
    team = pb.Team(name="organizations/acme/teams/search")
    await service.call(
        service.stub.UpdateTeam,
        pb.UpdateTeamRequest(team=team, update_mask=FieldMask(paths=["priority_class_grants"])),
    )
    await service.call(service.stub.DeletePriorityClass, request)

    assert refused.code == "FAILED_PRECONDITION"
    assert "urgent" not in await names(service)
    assert "urgent" not in service.cache.current.classes


async def test_default_class_stays(service: AdminService):
    request = pb.DeletePriorityClassRequest(name="priorityClasses/default")

    refused = await service.refused(service.stub.DeletePriorityClass, request)

    assert refused.code == "FAILED_PRECONDITION"


async def test_name_of_a_deleted_class_can_be_used_again(service: AdminService):
    made = await create(service, rank=50)
    await service.call(service.stub.DeletePriorityClass, pb.DeletePriorityClassRequest(name=made.name))
    refused = await service.refused(service.stub.GetPriorityClass, pb.GetPriorityClassRequest(name=made.name))

    again = await create(service, rank=60)

    assert refused.code == "NOT_FOUND"
    assert again.rank == 60
    assert service.cache.current.classes["urgent"].rank == 60


async def test_stale_etag_changes_and_deletes_nothing(service: AdminService):
    made = await create(service, rank=50)
    stale = pb.PriorityClass(name=made.name, rank=1, etag="stale")

    for method, request in (
        (service.stub.UpdatePriorityClass, pb.UpdatePriorityClassRequest(priority_class=stale)),
        (service.stub.DeletePriorityClass, pb.DeletePriorityClassRequest(name=made.name, etag="stale")),
    ):
        assert (await service.refused(method, request)).reason == "ETAG_MISMATCH"


class ToldEngine:
    """Keeps the classes that it is told."""

    def __init__(self) -> None:
        self.classes = {}
        self.revision = -1

    async def update_nodes(self, updates) -> None:
        pass

    async def update_classes(self, classes, revision: int) -> None:
        self.classes = {named.name: named for named in classes}
        self.revision = revision


async def test_engines_are_told_of_every_change(service: AdminService):
    engine = ToldEngine()
    before = service.cache.current
    await tell(engine, EMPTY_SNAPSHOT, before)
    made = await create(service, rank=50)
    after = service.cache.current

    await tell(engine, before, after)
    assert engine.classes["urgent"].rank == 50

    await service.call(
        service.stub.UpdatePriorityClass,
        pb.UpdatePriorityClassRequest(priority_class=pb.PriorityClass(name=made.name, rank=3)),
    )
    await tell(engine, after, service.cache.current)
    assert engine.classes["urgent"].rank == 3
    assert engine.revision == service.cache.current.revision
