"""Keeps the content of a chat message from becoming a control token, which would let it end its turn and open another.

A chat is rendered by the model's template and then encoded with control tokens recognised, which is what the model was
trained on. Content that holds no control token's text, nearly all of it, takes exactly that path. Where some does, a
mark is put inside it before rendering, a private-use character that no message holds: no template can make it whole
again. In the rendered text each whole control token, which the template wrote, becomes a private name that nobody can
guess; a twin of the tokenizer knows the control tokens by these names only, so one encoding pass reads the rest, marks
removed, as the plain text that it is, merges across all borders included.

Control tokens are the special tokens, and the added tokens that the template itself writes (`<tool_call>`, `</think>`)
unless they are whitespace. The latter stay in the assistant's content: the model wrote it so, and templates take it
apart by them. Text prompts are not guarded: who sends one owns all of it, as with token ids.
"""

import json
import re
import secrets
from collections import abc

from tokenizers import Tokenizer as Backend

from gateway.tokenizer.conversation import Conversation, mapped, strings_of
from gateway.tokenizer.description import Json
from gateway.tokenizer.errors import InvalidTextError

PRIVATE_USE = range(0x10FFFD, 0xFFFFF, -1)
"""The last private-use plane, from its end: fonts fill theirs from the beginning."""

QUOTE = "\U000ffffd"
"""Around private names: no mark, so that taking the marks out leaves them whole."""

ASSISTANT = "assistant"

SEARCH_CHARACTERS = 50_000
"""A regular expression holds the GIL; in slices of this size, for less than a millisecond at a time."""


class ControlTokens:
    """The control tokens of one model and its template."""

    def __init__(self, description: Json, template_text: str) -> None:
        """`template_text` is what the template itself can write."""
        merged = _merged(description)
        added = [token for token in description["added_tokens"] if token["content"] not in merged]
        special = {token["content"]: token["id"] for token in added if token["special"]}
        written = {token["content"]: token["id"] for token in added if _is_written(token, template_text)}
        self._id_by_text = special | written
        nonce = secrets.token_hex(8)
        self._private_by_text = {text: f"{QUOTE}{nonce}.{i}{QUOTE}" for text, i in self._id_by_text.items()}
        self._max_characters = max(map(len, self._id_by_text), default=0)
        self._any = _pattern(self._id_by_text)
        self._special = _pattern(special)
        # Plain text that the vocabulary lacks is the unknown token wherever it stands.
        self._checked_ids = frozenset(self._id_by_text.values()) - {_unknown_id(description)}
        self._twin = self._build_twin(description)

    def occur_in(self, conversation: Conversation) -> bool:
        """Whether anything in it holds the text of a control token that has no business there."""
        for turn in conversation.turns:
            role = str(turn["role"])
            if any(self._occurs(text, self._guarded(role, name)) for name, text in _parts(turn)):
                return True
        return any(self._occurs(text, self._any) for text in strings_of(conversation.tools))

    def mark(self, conversation: Conversation, mark: str) -> Conversation:
        """It with `mark` inside the text of each such control token.

        Raises InvalidTextError for a control token of a single character, which has no inside.
        """

        def marked(value: object, pattern: re.Pattern[str]) -> object:
            return mapped(value, lambda text: _broken(text, pattern, mark))

        turns = [
            {
                name: value if name == "role" else marked(value, self._guarded(str(turn["role"]), name))
                for name, value in turn.items()
            }
            for turn in conversation.turns
        ]
        tools = conversation.tools
        return Conversation(turns, None if tools is None else [_object(marked(tool, self._any)) for tool in tools])

    def encode(self, rendered: str, mark: str) -> list[int]:
        """Token ids of a chat that was rendered from marked messages.

        Raises InvalidTextError if the model's vocabulary makes a control token even of plain text.
        """
        written_ids: list[int] = []

        def to_private(match: re.Match[str]) -> str:
            written_ids.append(self._id_by_text[match[0]])
            return self._private_by_text[match[0]]

        text = self._any.sub(to_private, rendered).replace(mark, "")
        token_ids: list[int] = self._twin.encode_batch_fast([text], add_special_tokens=False)[0].ids
        checked = self._checked_ids
        if [i for i in token_ids if i in checked] != [i for i in written_ids if i in checked]:
            raise InvalidTextError("the content holds a control token that this model cannot read as plain text")
        return token_ids

    def _occurs(self, text: str, pattern: re.Pattern[str]) -> bool:
        return any(
            pattern.search(text, start, start + SEARCH_CHARACTERS + self._max_characters)
            for start in range(0, len(text), SEARCH_CHARACTERS)
        )

    def _guarded(self, role: str, name: str) -> re.Pattern[str]:
        return self._special if role == ASSISTANT and name == "content" else self._any

    def _build_twin(self, description: Json) -> Backend:
        names = self._private_by_text
        model = dict(description["model"])
        vocabulary = model["vocab"]
        if isinstance(vocabulary, dict):
            model["vocab"] = {names.get(token, token): token_id for token, token_id in vocabulary.items()}
        else:  # Unigram: [token, score] pairs, ids by position
            model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        added = [
            # Found before normalization: a private name has no other form.
            {**token, "content": names[token["content"]], "normalized": False} if token["content"] in names else token
            for token in description["added_tokens"]
        ]
        # The post-processor names control tokens, and adds none here.
        twin = Backend.from_str(
            json.dumps({**description, "model": model, "added_tokens": added, "post_processor": None})
        )
        assert all(twin.token_to_id(names[text]) == token_id for text, token_id in self._id_by_text.items())
        return twin


def _parts(turn: Json) -> abc.Iterator[tuple[str, str]]:
    """The texts of a turn that are its sender's, each with the name of the field that it is in."""
    return ((name, text) for name, value in turn.items() if name != "role" for text in strings_of(value))


def _object(value: object) -> Json:
    assert isinstance(value, dict), "what is mapped keeps its shape"
    return value


def _broken(text: str, pattern: re.Pattern[str], mark: str) -> str:
    """`text` without what `pattern` finds in it."""
    # Again, because breaking one can lay another one bare that overlaps it.
    while (found := pattern.search(text)) is not None:
        if len(found[0]) == 1:
            raise InvalidTextError(f"this model cannot read the character U+{ord(found[0]):04X} as plain text")
        text = pattern.sub(lambda match: match[0][0] + mark + match[0][1:], text)
    return text


def choose_mark(texts: abc.Sequence[str]) -> str:
    """A mark that occurs in none of `texts`. Raises InvalidTextError if a whole private-use plane is taken."""
    for code in PRIVATE_USE:
        if not any(chr(code) in text for text in texts):
            return chr(code)
    raise InvalidTextError("the messages use every character of a private-use plane")


def _merged(description: Json) -> frozenset[str]:
    """The pieces that plain text is put together from: an added token among them is ordinary text too."""
    merges: list[tuple[str, str]] = description["model"].get("merges", [])
    return frozenset(piece for left, right in merges for piece in (left, right, left + right))


def _is_written(token: Json, template_text: str) -> bool:
    text: str = token["content"]
    return not token["special"] and not text.isspace() and text in template_text


def _pattern(texts: abc.Iterable[str]) -> re.Pattern[str]:
    """Finds any of `texts`, the longest first, as the tokenizer does."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or r"(?!)")


def _unknown_id(description: Json) -> int | None:
    model = description["model"]
    if model["type"] == "Unigram":
        unknown_id: int | None = model["unk_id"]
        return unknown_id
    vocabulary: dict[str, int] = model["vocab"]
    return vocabulary.get(model["unk_token"]) if model.get("unk_token") is not None else None
