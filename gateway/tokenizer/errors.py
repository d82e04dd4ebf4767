"""What the tokenizer refuses. Each message may be shown to the caller; none holds prompt text, but for what a model's
own template chose to say.

TokenizerError
├── UnusableTokenizerError   the engine's tokenizer cannot be used here: a fault of the model file, found at the start
└── PromptError              a fault of the request
    ├── EmptyPromptError     no text, no messages, or nothing that yields a token
    ├── InvalidTextError     text that is not Unicode (a lone surrogate), a role that is no name
    ├── PromptTooLargeError  certainly longer than the context, found without tokenizing it
    └── ChatTemplateError    the model's template refuses the messages or fails on them
"""


class TokenizerError(Exception):
    """Base of every error of this package."""


class UnusableTokenizerError(TokenizerError):
    """The model's tokenizer is damaged or of a kind that this gateway cannot turn into text faithfully."""


class PromptError(TokenizerError):
    """Base of what a request can do wrong."""


class EmptyPromptError(PromptError):
    """There is nothing to continue."""

    def __init__(self) -> None:
        super().__init__("the prompt is empty")


class InvalidTextError(PromptError):
    """The text cannot be encoded, whatever the model."""


class PromptTooLargeError(PromptError):
    """Even if each token covered as much text as any can, the prompt would not fit the context."""

    def __init__(self, num_characters: int, max_characters: int) -> None:
        super().__init__(
            f"the prompt has {num_characters} characters or more; over {max_characters} cannot fit the model's context"
        )
        self.num_characters = num_characters
        self.max_characters = max_characters


class ChatTemplateError(PromptError):
    """The model has no usable chat template, or its template raised: then in the template's words, if it chose some."""
