"""`filter` (AIP-160) and `order_by` (AIP-132) of a list: from text to what the store takes.

The subset: comparisons of one field with one value, AND, OR, NOT or `-`, parentheses; two terms next to each other are
both required; OR binds tighter than AND, as the AIP has it. Not in it: search without a field, functions, nested
fields. No library on the package index implements the AIP.
"""

import re

from gateway.admin.names import invalid
from gateway.store.listing import Alternative, Comparison, Condition, Conjunction, Negation
from gateway.store.records import Order

MAX_CHARS = 2000
MAX_DEPTH = 20
EXAMPLE = 'write state = "SUSPENDED" AND display_name = "a*"'
TOKEN = re.compile(
    r"""\s*(?:
    (?P<punctuation>[()])
    | (?P<operator><=|>=|!=|=|<|>|:)
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | '(?P<single>(?:[^'\\]|\\.)*)'
    | (?P<word>[^\s()<>=!:"',]+)
    )""",
    re.VERBOSE | re.DOTALL,
)
ORDER = re.compile(r"([a-z_]+)(?:\s+(asc|desc))?")
Token = tuple[str, str]  # which group of TOKEN, and its text
END: Token = ("end", "the end")


def parse_filter(text: str) -> Condition | None:
    """What `text` asks for; None where it is empty. Raises InvalidFieldError."""
    if not text.strip():
        return None
    if len(text) > MAX_CHARS:
        raise invalid("filter", f"must be at most {MAX_CHARS} characters")
    if "\0" in text:
        raise invalid("filter", "must not hold the NUL character")  # which Postgres compares with nothing
    return _Parser(_tokens(text)).parsed()


def parse_order(text: str) -> tuple[Order, ...]:
    """`create_time desc, name` as values. Raises InvalidFieldError."""
    orders: dict[str, Order] = {}
    for part in text.split(",") if text.strip() else ():
        match = ORDER.fullmatch(part.strip())
        if match is None:
            raise invalid("order_by", f"{part.strip()!r} is neither FIELD nor FIELD desc")
        if match[1] in orders:
            raise invalid("order_by", f"{match[1]!r} is listed twice")
        orders[match[1]] = Order(match[1], match[2] == "desc")
    return tuple(orders.values())


def _tokens(text: str) -> list[Token]:
    tokens: list[Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = TOKEN.match(text, position)
        if match is None:
            raise invalid("filter", f"cannot be read from {text[position : position + 20].strip()!r} on: {EXAMPLE}")
        kind = match.lastgroup or ""
        if kind in ("double", "single"):
            tokens.append(("text", re.sub(r"\\(.)", r"\1", match[kind], flags=re.DOTALL)))
        else:
            tokens.append((kind, match[kind]))
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent, one method per rule of the AIP's grammar."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    def parsed(self) -> Condition:
        condition = self._expression()
        if self._peek() is not END:
            raise self._unexpected()
        return condition

    def _expression(self) -> Condition:
        parts = [self._factor()]
        while True:
            if self._peek() == ("word", "AND"):
                self._next()
            elif self._peek() in (END, ("punctuation", ")")):
                break
            parts.append(self._factor())
        return parts[0] if len(parts) == 1 else Conjunction(tuple(parts))

    def _factor(self) -> Condition:
        parts = [self._term()]
        while self._peek() == ("word", "OR"):
            self._next()
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else Alternative(tuple(parts))

    def _term(self) -> Condition:
        kind, text = self._peek()
        if (kind, text) == ("word", "NOT"):
            self._next()
            return Negation(self._simple())
        if kind == "word" and text == "-":
            self._next()
            return Negation(self._simple())
        if kind == "word" and text.startswith("-"):
            self._tokens[self._position] = (kind, text[1:])
            return Negation(self._simple())
        return self._simple()

    def _simple(self) -> Condition:
        if self._peek() == ("punctuation", "("):
            self._next()
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise invalid("filter", f"has more than {MAX_DEPTH} parentheses inside each other")
            condition = self._expression()
            if self._next() != ("punctuation", ")"):
                raise invalid("filter", "has a parenthesis that is not closed")
            self._depth -= 1
            return condition
        return self._comparison()

    def _comparison(self) -> Condition:
        kind, path = self._peek()
        if kind != "word" or path in ("AND", "OR", "NOT"):
            raise self._unexpected()
        self._next()
        if self._peek()[0] != "operator":
            raise invalid("filter", f"{path!r} is compared with nothing: {EXAMPLE}")
        _, operator = self._next()
        return Comparison(path, operator, self._value())

    def _value(self) -> str:
        kind, text = self._peek()
        if kind not in ("word", "text"):
            raise self._unexpected()
        self._next()
        # A time without quotes has colons: 2026-01-31T00:00:00Z.
        while kind == "word" and self._peek() == ("operator", ":") and text[-1:].isdigit():
            text += ":" + self._after_colon()
        return text

    def _after_colon(self) -> str:
        self._next()
        kind, text = self._next()
        if kind != "word":
            raise invalid("filter", f"cannot be read: put the value in quotes, as in {EXAMPLE}")
        return text

    def _peek(self) -> Token:
        return self._tokens[self._position] if self._position < len(self._tokens) else END

    def _next(self) -> Token:
        token = self._peek()
        self._position += 1
        return token

    def _unexpected(self) -> Exception:
        return invalid("filter", f"{self._peek()[1]!r} is not expected there: {EXAMPLE}")
