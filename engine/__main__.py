"""`python -m engine` is `evenflow engine`, where only the engine is installed."""

from engine.commands.engine import app

app(prog_name="evenflow engine")
