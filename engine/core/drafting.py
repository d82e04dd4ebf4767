"""What the scheduler knows of the drafts of one sequence."""

from dataclasses import dataclass

# What is known of drafts before the first one was verified: how many were right, of how many that were looked at.
PRIOR_RIGHT, PRIOR_TRIED = 1.2, 2.0


@dataclass(slots=True)
class Drafting:
    """The drafts of one sequence. Written by Drafts, Lifecycle and Committer, see `speculation`.

    num_proposed    drafts that the runner has for it
    num_certain     of these, the first ones, which can hardly be wrong: they are no guesses
    num_scheduled   of these, in the plan being made or open
    limit           that the runner may propose behind that plan
    num_drafted     verified so far, of which num_accepted were right
    right, tried    likewise of guesses, the latest weighing most; drafts behind a wrong one were not tried
    """

    num_proposed: int = 0
    num_certain: int = 0
    num_scheduled: int = 0
    limit: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    right: float = PRIOR_RIGHT
    tried: float = PRIOR_TRIED
