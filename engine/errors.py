"""What can go wrong in the engine process. Knows neither gRPC nor tensors; `engine.core.errors` has the scheduler's.

EngineError
├── StartError                  the process cannot start; the text is one line for the operator
│   ├── SettingsError           a setting is unknown, out of range or contradicts another
│   └── ListenError             the address cannot be listened on
├── RunnerFailedError           the runner failed several steps in a row; the process ends so that it is started again
└── RefusedError                a request or a call that is not accepted
    ├── InvalidFieldError       a field of the message is missing or out of range
    ├── ProtocolVersionError    the two sides speak different versions
    ├── DrainingError           intake has stopped
    ├── UnknownRequestError     no unfinished request has this id
    ├── BrokenCallError         a bug of ours ended the call
    ├── GrammarsBusyError       too many grammars wait to be compiled
    └── NotReadyError           the model is being loaded, or the engine has failed
"""


class EngineError(Exception):
    """Base of every error of the engine process."""


class StartError(EngineError):
    """The process cannot start."""


class SettingsError(StartError):
    """`setting` is what to change; the text begins with it."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting} {problem}")
        self.setting = setting


class ListenError(StartError):
    """`address` is in use, or cannot be bound."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(f"cannot listen on {address}: {problem}")
        self.address = address


class RunnerFailedError(EngineError):
    """`num_failures` steps in a row raised."""

    def __init__(self, num_failures: int) -> None:
        super().__init__(f"the runner failed {num_failures} steps in a row")
        self.num_failures = num_failures


class RefusedError(EngineError):
    """Not accepted. The text is safe to show to a client: it never holds prompt text."""


class InvalidFieldError(RefusedError):
    """`field` is the name of the wire's field, dotted."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


class ProtocolVersionError(RefusedError):
    """The peer must be upgraded, or this engine."""

    def __init__(self, theirs: int, ours: int) -> None:
        super().__init__(f"the engine speaks protocol version {ours}, the caller version {theirs}")
        self.theirs = theirs
        self.ours = ours


class DrainingError(RefusedError):
    """No new request is accepted; those accepted go on."""

    def __init__(self) -> None:
        super().__init__("the engine is shutting down and accepts no new request")


class UnknownRequestError(RefusedError):
    """The request has ended, or never was."""

    def __init__(self, generation_id: str) -> None:
        super().__init__(f"no unfinished request is called {generation_id!r}")


class GrammarsBusyError(RefusedError):
    """The same request can succeed later; one without a grammar, or with a known one, at once."""

    def __init__(self) -> None:
        super().__init__("too many grammars wait to be compiled")


class BrokenCallError(RefusedError):
    """A bug of ours ended the call; the log has it."""

    def __init__(self) -> None:
        super().__init__("the engine has failed at this request")


class NotReadyError(RefusedError):
    """There is nothing to serve with: not yet, or no longer."""
