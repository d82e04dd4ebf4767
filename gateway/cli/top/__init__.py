"""`evenflow top`: what the gateways and engines do now, for whom, and who is ahead, drawn anew every second.

polling   one report after another, from a gateway that may go away and come back
figures   from reports to what is shown: rates and shares need more than one
frame     from figures to lines that fit a terminal; knows no terminal
app       the live view on a terminal
"""

from gateway.cli.top.command import top

__all__ = ["top"]
