"""What a simulation cannot be started with, or ends with. The text is one line for whoever typed the command.

SimulationError
├── CostLineError         a cost line is unknown, malformed or out of range
├── PolicyChoiceError     a policy and its options are not written as they must be
├── ReplayError           a decision log cannot be read, or a line of it makes no sense
├── ScenarioError         a scenario is unknown, or cannot be run with what was asked
└── StalledError          requests are left that nothing will ever move on
"""


class SimulationError(Exception):
    """Base of every error of the simulator."""


class CostLineError(SimulationError):
    """The cost line cannot be used."""


class PolicyChoiceError(SimulationError):
    """The text names no policy, or malformed options."""


class ReplayError(SimulationError):
    """Line `line_number` of a decision log cannot be replayed."""

    def __init__(self, line_number: int, problem: str) -> None:
        super().__init__(f"line {line_number}: {problem}")
        self.line_number = line_number
        self.problem = problem


class ScenarioError(SimulationError):
    """The scenario cannot be run."""


class StalledError(SimulationError):
    """`num_requests` are unfinished, no step can be planned, and nothing is awaited: a policy that starves them."""

    def __init__(self, num_requests: int) -> None:
        super().__init__(f"{num_requests} requests are unfinished, and the scheduler plans no step for them")
        self.num_requests = num_requests
