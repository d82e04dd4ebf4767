"""`evenflow model`: what other tools need to know of a model that is served."""

from pathlib import Path
from typing import Annotated

import typer

from evenflow.inference.v1 import model_pb2 as pb
from evenflow.inference.v1.model_pb2_grpc import ModelServiceStub
from gateway.cli.chat import ApiKeyOption
from gateway.cli.command import AddressOption, DataDirOption, command
from gateway.cli.connection import CALL_TIMEOUT_S, Target, connect, find_address, find_api_key
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError
from gateway.cli.output import stderr
from gateway.cli.security import CaCertOption, ClientCertOption, ClientKeyOption, Security

app = typer.Typer(help="Models that are served.", no_args_is_help=True)

ModelOption = Annotated[
    str, typer.Option("--model", envvar="EVENFLOW_MODEL", help="Which one; left out: the only one that is served.")
]


@app.command("export-tokenizer")
@command
def export_tokenizer(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to put it; made if it is not there.")],
    model: ModelOption = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a tokenizer that DIR has already.")] = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
    api_key_file: ApiKeyOption = None,
    ca_cert: CaCertOption = None,
    client_cert: ClientCertOption = None,
    client_key: ClientKeyOption = None,
) -> None:
    """Write a model's tokenizer as a folder that Hugging Face's AutoTokenizer loads, chat template and all.

    Tools that count tokens on their side, such as benchmarks, then count as the gateway does.
    """
    target = Target(address, DataDir.at(data_dir), api_key_file, Security(ca_cert, client_cert, client_key))
    with connect(find_address(target), find_api_key(target), target.security) as connection:
        found = ModelServiceStub(connection.channel).GetTokenizer(
            pb.GetTokenizerRequest(name=model), metadata=connection.metadata, timeout=CALL_TIMEOUT_S
        )
    write_folder(directory, folder_of(found), is_forced=force)
    stderr().print(f"The tokenizer of {found.name} is in {directory}.", soft_wrap=True)


def folder_of(found: pb.GetTokenizerResponse) -> dict[str, str]:
    """The files' texts by their names. Raises CliError."""
    # Here, so that other commands do not wait for the library.
    from gateway.tokenizer import SpecialTokens, UnusableTokenizerError, tokenizer_files

    special = SpecialTokens(
        bos_token_id=found.bos_token_id if found.HasField("bos_token_id") else None,
        eos_token_ids=tuple(found.eos_token_ids),
        pad_token_id=found.pad_token_id if found.HasField("pad_token_id") else None,
        unk_token_id=found.unk_token_id if found.HasField("unk_token_id") else None,
        add_bos_token=found.add_bos_token,
    )
    try:
        return tokenizer_files(found.tokenizer_json, found.chat_template, special, found.context_tokens)
    except UnusableTokenizerError as error:
        raise CliError(str(error)) from error


def write_folder(directory: Path, files: dict[str, str], *, is_forced: bool) -> None:
    """The files are there. Raises CliError, also where one of them was there already and that is not `is_forced`."""
    for name in files:
        if not is_forced and (directory / name).exists():
            raise CliError(f"{directory / name} exists", hint="take another folder, or --force to replace it")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write to {directory}: {error.strerror}") from error
