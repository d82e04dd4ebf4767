"""What the traffic of the past would have met under other policies: the door in virtual time, then the engine."""

from gateway.admin.what_if.service import WhatIf

__all__ = ["WhatIf"]
