"""What becomes of a key that was just shown: how it is used, and where an old secret of it is still kept."""

import os
from collections import abc
from pathlib import Path

from evenflow.admin.v1 import admin_pb2 as pb
from gateway import api_key
from gateway.cli.command import Admin
from gateway.cli.output import stderr
from gateway.private_files import read_text, write_private
from gateway.words import short_name

VARIABLES = ("EVENFLOW_ADMIN_KEY", "EVENFLOW_API_KEY")
INFERENCE = "inference"


def explain_key(address: str, key: pb.ApiKey, *, kept_in: abc.Sequence[Path] = ()) -> None:
    """How to use `key`, which holds its secret, and that it is not shown again. `kept_in`: the files that hold it."""
    console = stderr()
    console.print("\nThis is the only time that the key is shown. Use it:")
    chats, administrates = INFERENCE in key.scopes, any(scope.startswith("admin") for scope in key.scopes)
    if chats:
        setting = "" if kept_in else f"EVENFLOW_API_KEY={key.secret} "
        console.print(f'  {setting}evenflow chat "Why is the sky blue?"')
    if administrates:
        for line in _admin_lines(key, is_kept=bool(kept_in) and not chats):
            console.print(f"  {line}")
    console.print(f"  or with any gRPC client at {address}: metadata `authorization: Bearer {key.secret}`")


def _admin_lines(key: pb.ApiKey, *, is_kept: bool) -> abc.Iterator[str]:
    if is_kept:
        yield "evenflow status, and all other commands"
        return
    yield f"EVENFLOW_ADMIN_KEY={key.secret} evenflow keys list"
    yield "or from a file: evenflow keys list --admin-key-file FILE"
    team, _, public_id = key.name.rpartition("/apiKeys/")
    if team:
        command = f"evenflow roles grant team-admin --to {public_id} --at {short_name(team)}"
        yield f"once it has a role, such as by: {command}"


def renew_kept(admin: Admin, rotated: pb.ApiKey) -> list[Path]:
    """Every file of the data directory that holds the rotated key has its new secret; returns those.

    Where else this command's own key comes from, somebody is told to put it. Raises PrivateFileError.
    """
    if not rotated.secret:
        return []  # a retry's answer
    files = [path for path in (admin.data_dir.admin_key, admin.data_dir.api_key) if _is_of(read_text(path), rotated)]
    for path in files:
        write_private(path, rotated.secret + "\n")
        stderr().print(f"\n{path} has the new secret.")
    own = admin.connection.key
    held = {own.source} if _is_of(own.text, rotated) else set()
    held |= {f"the variable {name}" for name in VARIABLES if _is_of(os.environ.get(name, ""), rotated)}
    for place in sorted(held - {str(path) for path in files}):
        stderr().print(f"\n{place} holds the old secret{_until(rotated)}: put the new one there.", style="yellow")
    return files


def _is_of(text: str, key: pb.ApiKey) -> bool:
    parsed = api_key.parse(text.strip())
    return parsed is not None and parsed.public_id == key.name.rpartition("/")[2]


def _until(key: pb.ApiKey) -> str:
    ends = [secret.expire_time for secret in key.secrets if secret.HasField("expire_time")]
    return f", which works until {ends[0].ToDatetime():%Y-%m-%d %H:%M:%SZ}" if ends else ", which has ended"
