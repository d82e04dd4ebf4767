"""`evenflow engine`, and `python -m engine`: flags and environment to settings, settings to a process.

Each field of EngineSettings is a flag, made from the field itself, so that the two cannot drift apart. Values stay text
until the settings parse them: flags and environment are judged alike, in one line that names the setting.
"""

import asyncio
import inspect
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperGroup

from engine.commands.progress import loading_progress
from engine.errors import SettingsError, StartError
from engine.model.errors import ModelError
from engine.settings import EngineSettings, read_settings
from engine.telemetry import configure_logging

EXIT_START = 1  # may work later: the address is taken
EXIT_SETTINGS = 2  # will never work like this

MAX_HELP_CHARS = 10_000  # of a line: as wide as the terminal
METAVARS: dict[object, str] = {int: "INTEGER", float: "NUMBER", Path: "PATH", str: "TEXT", ...: "NAME=VALUE"}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, subcommand_metavar="")


class WholeFlags(TyperGroup):
    """A command whose help breaks lines; the usual boxes cut long flags where the terminal is narrow."""

    # Any: typer passes on what it was told of the command.
    def __init__(self, **settings: Any) -> None:
        context = {**(settings.pop("context_settings", None) or {}), "max_content_width": MAX_HELP_CHARS}
        super().__init__(**{**settings, "rich_markup_mode": None, "context_settings": context})


def run_engine(*, check: bool, **flags: object) -> None:
    """Serve a model to gateways, until SIGTERM. Each flag --NAME can be given as EVENFLOW_ENGINE_NAME instead."""
    try:
        settings = read_settings(flags)
        check_files(settings)
        code = _check(settings) if check else _serve(settings)
    except (StartError, ModelError) as error:
        typer.echo(f"evenflow engine: {error}", err=True)
        code = EXIT_SETTINGS if isinstance(error, SettingsError | ModelError) else EXIT_START
    raise typer.Exit(code)


def check_files(settings: EngineSettings) -> None:
    """The models are there, as far as can be told without loading them. Raises SettingsError."""
    for name, path in (("model", settings.model), ("draft_model", settings.draft_model)):
        if path is not None and not path.exists():
            raise SettingsError(name, f"is {path}, and there is no such file or folder")


def _check(settings: EngineSettings) -> int:
    """Policies are there. Raises SettingsError."""
    from engine.server.serve import load_policies  # here, so that `evenflow --help` does not wait for gRPC

    load_policies(settings)  # who serves does so first of all
    return 0


def _serve(settings: EngineSettings) -> int:
    configure_logging(settings.log_format)
    return asyncio.run(_run(settings))


async def _run(settings: EngineSettings) -> int:
    # Here, so that `evenflow --help` does not wait for gRPC.
    from engine.server.backend import load_backend
    from engine.server.serve import serve

    with loading_progress(str(settings.model or "the default model")) as on_progress:
        return await serve(settings, partial(load_backend, settings, on_progress))


def _flag(name: str, field: FieldInfo) -> inspect.Parameter:
    """The option of one field; None where it is not given."""
    is_repeatable = field.default == ()
    hint: Any = str | None  # a type that is computed, which no type describes
    if field.annotation is bool:
        hint = bool | None
    elif is_repeatable:
        hint = list[str] | None
    option = typer.Option(
        f"--{name.replace('_', '-')}" + (f"/--no-{name.replace('_', '-')}" if field.default is True else ""),
        help=_help(field),
        metavar=_metavar(field),
        show_default=False,
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint, option])


def _metavar(field: FieldInfo) -> str | None:
    if field.annotation is bool:
        return None
    parts = get_args(field.annotation) or (field.annotation,)
    choices = [part for part in parts if isinstance(part, str)]
    return "|".join(choices) or next(METAVARS[part] for part in parts if part in METAVARS)


def _help(field: FieldInfo) -> str:
    if field.is_required() or field.default in (None, (), True, False):
        return field.description or ""
    return f"{field.description} Default: {field.default}."


_CHECK = inspect.Parameter(
    "check",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--check", help="Judge the settings, and serve nothing.")],
)
_FLAGS = [*(_flag(name, field) for name, field in EngineSettings.model_fields.items()), _CHECK]
run_engine.__signature__ = inspect.Signature(_FLAGS)  # type: ignore[attr-defined]  # what typer reads the options from
run_engine.__annotations__ = {flag.name: flag.annotation for flag in _FLAGS}
app.callback(invoke_without_command=True, cls=WholeFlags)(run_engine)
