"""The tokenizer's JSON form (Hugging Face `tokenizers`), read only where the library itself does not tell.

Knows the file format and nothing of prompts. A part that is a `Sequence` is flattened into its steps.
"""

from collections import abc
from typing import Any

Json = dict[str, Any]  # Any: the format is nested and each step has its own fields
"""One object of the format, as the library writes it: every field is there."""

SEQUENCE_FIELDS = ("normalizers", "pretokenizers", "decoders")


def steps(part: Json | None) -> abc.Iterator[Json]:
    """The steps of a normalizer, pre-tokenizer or decoder, in order, however deep they are nested."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for field in SEQUENCE_FIELDS:
        for step in part.get(field, ()):  # only one of them is there
            yield from steps(step)
