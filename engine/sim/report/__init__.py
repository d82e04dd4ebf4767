"""Outcomes side by side: a table for people, JSON for tools, a picture for both."""

from engine.sim.report.document import to_json_text
from engine.sim.report.picture import PictureError, write_picture
from engine.sim.report.table import outcome_tables

__all__ = ["PictureError", "outcome_tables", "to_json_text", "write_picture"]
