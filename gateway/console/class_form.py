"""A priority class as the fields of a form, there and back, and its parts when two people edit it. Pure."""

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.form_values import Fields, FormReader
from gateway.console.policies.form import number_text
from gateway.console.versions import Part, PartKey, all_keys, text_of
from gateway.durations import duration_text

PLACES = {field: field for field in ("rank", "min_share", "preemptible", "max_queue_wait")}
MAX_RANK = 2**31 - 1


def read_class(form: Fields, name: str) -> tuple[pb.PriorityClass, dict[str, str]]:
    """The class `name` as the form has it, and what is wrong, by field."""
    reader = FormReader(form)
    rank = reader.whole("rank")
    if rank > MAX_RANK:
        rank = reader.refuse("rank", f"must be at most {MAX_RANK}", 0)
    share = reader.number("min_share")
    if share > 100:
        share = reader.refuse("min_share", "must be from 0 to 100", 0.0)
    message = pb.PriorityClass(
        name=name,
        rank=rank,
        min_share=share / 100,
        preemptible=reader.flag("preemptible"),
        etag=reader.text("etag"),
    )
    wait = reader.length("max_queue_wait")
    if wait is not None:
        message.max_queue_wait.FromTimedelta(wait)
    return message, reader.errors


def form_of(message: pb.PriorityClass) -> dict[str, str]:
    """The fields that show `message`. The share is in percent."""
    form = {"rank": str(message.rank), "min_share": number_text(message.min_share * 100), "etag": message.etag}
    if message.preemptible:
        form["preemptible"] = "on"
    if message.HasField("max_queue_wait"):
        form["max_queue_wait"] = duration_text(message.max_queue_wait.ToTimedelta())
    return form


def parts_of(message: pb.PriorityClass) -> dict[PartKey, Part]:
    """Everything that `message` says, in the order of the form."""
    has_wait = message.HasField("max_queue_wait")
    return {
        ("rank",): Part("Rank", str(message.rank)),
        ("min_share",): Part("Kept share", f"{number_text(message.min_share * 100)} %"),
        ("preemptible",): Part("Can be preempted", "yes" if message.preemptible else "no"),
        ("max_queue_wait",): Part(
            "Longest wait", duration_text(message.max_queue_wait.ToTimedelta()) if has_wait else "no bound"
        ),
    }


def merged(base: pb.PriorityClass, theirs: pb.PriorityClass, yours: pb.PriorityClass) -> pb.PriorityClass:
    """`theirs` with everything that `yours` changed of `base`, under the etag of `theirs`."""
    old, their, your = (parts_of(side) for side in (base, theirs, yours))
    result = pb.PriorityClass()
    result.CopyFrom(theirs)
    for key in all_keys(old, their, your):
        if text_of(your[key]) == text_of(old[key]):
            continue
        result.ClearField(key[0])  # type: ignore[arg-type]  # the keys are names of fields
        if key == ("max_queue_wait",):
            if yours.HasField("max_queue_wait"):
                result.max_queue_wait.CopyFrom(yours.max_queue_wait)
        else:
            setattr(result, key[0], getattr(yours, key[0]))
    return result
