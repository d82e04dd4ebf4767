"""What every table shares: column types, names of constraints, and the conditions that several columns repeat."""

import uuid
from datetime import date, datetime
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import BigInteger, Date, DateTime, Double, LargeBinary, MetaData, Text, Uuid
from sqlalchemy.orm import DeclarativeBase

NAMING = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
}
SLUG = "~ '^[a-z][a-z0-9-]{0,62}$'"


def one_of(column: str, values: type[StrEnum]) -> str:
    """The SQL condition that a text column holds one of an enum's values."""
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


class Base(DeclarativeBase):
    """Every table; names of constraints follow one rule, so that an error can name what refused a row."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map: ClassVar = {
        uuid.UUID: Uuid(),
        datetime: DateTime(timezone=True),
        str: Text(),
        bytes: LargeBinary(),
        date: Date(),
        int: BigInteger(),
        float: Double(),
    }
