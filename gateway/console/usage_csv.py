"""Usage as CSV: a heading and a line per row, with the columns of `evenflow usage report --output csv`.

A cell that a spreadsheet would take for a formula begins with an apostrophe: names of models and of a token's subject
are written by others than the reader. Source: OWASP, CSV injection.
"""

import csv
import io
from collections import abc

from gateway.console.usage import COUNTS, UsageLine, UsageQuestion

FORMULA_BEGINS = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_head(question: UsageQuestion) -> str:
    """The first line."""
    return _line([*(["from"] if question.per else []), *question.by, *COUNTS])


def csv_lines(lines: abc.Iterable[UsageLine]) -> str:
    """Times in ISO 8601, numbers as they are."""
    return "".join(
        _line([*([] if line.start is None else [line.start.isoformat()]), *line.names, *line.counts]) for line in lines
    )


def csv_name(question: UsageQuestion) -> str:
    """What the file is called: letters, digits and `-` only, as it is part of a header."""
    tenant = "-".join(question.parent.split("/")[1::2]) or "everybody"
    return f"usage-{tenant}-{question.begin:%Y%m%dT%H}-{question.end:%Y%m%dT%H}.csv"


def _line(cells: abc.Iterable[str | int]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow([_harmless(cell) for cell in cells])
    return text.getvalue()


def _harmless(cell: str | int) -> str | int:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_BEGINS) else cell
