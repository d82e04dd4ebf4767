"""What `python -m engine` says when it cannot start: one line that names the culprit, and an exit code."""

import os
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from engine.commands.engine import app
from engine.settings import ENV_PREFIX, EngineSettings
from tests.engine.engine_process import ROOT, START_S, clean_environ


def run(*arguments, **variables) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "engine", *arguments]
    environ = clean_environ(**variables)
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=START_S, check=False)


def run_here(*arguments, **variables):
    """The same in this process, for what is said before anything is loaded: importing takes most of a start."""
    foreign = {name: None for name in os.environ if name.startswith(ENV_PREFIX)}
    return CliRunner(env=foreign | variables).invoke(app, arguments)


def last_line(result: subprocess.CompletedProcess) -> str:
    assert "Traceback" not in result.stderr
    assert not result.stdout
    return result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        ((), {}, "listen is required"),
        (("--listen", "unix:{folder}/" + "x" * 108), {}, "listen has a path of"),
        (("--listen", "unix:{folder}/e"), {"EVENFLOW_ENGINE_MAX_SEQS": "8"}, "EVENFLOW_ENGINE_MAX_SEQS is no setting"),
        (("--listen", "unix:{folder}/e"), {"EVENFLOW_ENGINE_BLOCK_SIZE": "0"}, "block_size must be"),
        (("--listen", "unix:{folder}/e", "--scheduling-policy", "lifo"), {}, "scheduling_policy cannot be loaded"),
        (("--listen", "unix:{folder}/e", "--scheduling-option", "speed=1"), {}, "fair has no option speed"),
        (
            ("--listen", "unix:{folder}/e", "--num-device-blocks", "9", "--kv-cache-bytes", "9"),
            {},
            "kv_cache_bytes contradicts num_device_blocks",
        ),
    ],
)
def test_bad_setting_is_named_in_one_line_with_exit_code_two(tmp_path, arguments, variables, said):
    result = run_here(*(argument.format(folder=tmp_path) for argument in arguments), **variables)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert last_line(result).startswith("evenflow engine: ")
    assert said in last_line(result)


def test_unknown_flag_is_named_with_exit_code_two():
    result = run("--max-num-sequences", "8")
    assert result.returncode == 2
    assert "--max-num-sequences" in result.stderr


def test_setting_that_contradicts_the_model_is_named(tmp_path):
    result = run("--listen", f"unix:{tmp_path}/e", "--max-num-batched-tokens", "8", "--num-threads", "1")
    assert result.returncode == 2
    assert "max_num_batched_tokens (8) must be at least max_num_seqs" in last_line(result)
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("content", [None, b"GGUF\x03\x00"])
def test_missing_or_corrupt_model_file_is_named_with_exit_code_two(tmp_path, content):
    model = tmp_path / "broken.gguf"
    if content is not None:
        model.write_bytes(content)
    result = run("--listen", f"unix:{tmp_path}/e", "--model", str(model))
    assert result.returncode == 2
    assert str(model) in last_line(result)


def test_socket_in_use_is_named_before_the_model_is_loaded(tmp_path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{tmp_path}/e")
        other.listen()
        result = run("--listen", f"unix:{tmp_path}/e")
    assert result.returncode == 1
    assert result.stderr == f"evenflow engine: cannot listen on unix:{tmp_path}/e: another process listens there\n"


def test_port_in_use_is_named_before_the_model_is_loaded():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = run("--listen", address)
    assert result.returncode == 1
    assert result.stderr == f"evenflow engine: cannot listen on {address}: Address already in use\n"


def test_settings_are_judged_without_serving(tmp_path):
    good = run("--listen", f"unix:{tmp_path}/e", "--check")
    bad = run("--listen", f"unix:{tmp_path}/e", "--check", "--model", f"{tmp_path}/none")

    assert (good.returncode, good.stderr) == (0, "")
    assert bad.returncode == 2
    assert bad.stderr == f"evenflow engine: model is {tmp_path}/none, and there is no such file or folder\n"
    assert not (tmp_path / "e").exists()


def test_help_cuts_no_flag_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(app, ["--help"], terminal_width=80).output
    for name in EngineSettings.model_fields:
        assert f"--{name.replace('_', '-')}" in text
    assert "…" not in text


def test_help_lists_every_setting_with_its_meaning(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    text = CliRunner().invoke(app, ["--help"], terminal_width=300).output
    for name, field in EngineSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert field.description in text
    assert ENV_PREFIX in text
