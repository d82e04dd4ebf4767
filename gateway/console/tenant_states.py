"""The state that a button puts an organization or a team into."""

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.forms import Form
from gateway.errors import FieldViolation, InvalidFieldError

STATES = {"active": pb.STATE_ACTIVE, "suspended": pb.STATE_SUSPENDED}
DONE = {pb.STATE_ACTIVE: "served again", pb.STATE_SUSPENDED: "suspended: its requests are refused"}
"""What a notice says of it."""


def state_asked(form: Form) -> pb.State.ValueType:
    """Raises InvalidFieldError for what is no state that a button stands for: nobody is served again by mistake."""
    state = STATES.get(form.text("state"))
    if state is None:
        raise InvalidFieldError(FieldViolation("state", f"must be one of {', '.join(STATES)}"))
    return state
