"""`vllmeter init`: from a Compose file or from processes, and it never overwrites or executes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vllmeter.cli import init as module
from vllmeter.cli.app import app
from vllmeter.cli.init import blocks_of_processes, card_of
from vllmeter.config.load import parse_config
from vllmeter.memory.compose_file import render_config
from vllmeter.snapshot import GpuReading, HostProcess, NvmlReading, ProcessTable

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "three-services.compose.yaml"
GIB = 1 << 30


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["init", *arguments])


def test_the_example_on_an_8_gb_card() -> None:
    """The users' three services: a configuration that loads, and that it may not fit, with a set that does."""
    result = run("--from-compose", str(EXAMPLE), "--gpu-total", "7.78GiB")
    assert result.exit_code == 0
    assert [server.name for server in parse_config(result.stdout).servers] == ["vllm-qwen3", "vllm-m3", "vllm-reranker"]
    assert "7.88 GiB to 9.05 GiB in all, more than the card has" in result.stdout
    assert "fractions that fit: vllm-qwen3 0.41" in result.stdout
    assert "3 servers; 1 findings, the worst: error" in result.stderr


def test_variables_env_files_and_profiles_beside_the_file(tmp_path: Path) -> None:
    """`.env` fills `${…}`, env files are read relative to the Compose file, profiles switch services on."""
    (tmp_path / ".env").write_text("FRACTION=0.3\n")
    (tmp_path / "vllm.env").write_text("VLLM_CPU_OFFLOAD_GB=4\n")
    path = tmp_path / "compose.yaml"
    path.write_text(
        "services:\n"
        "  a:\n    image: vllm/vllm-openai\n    env_file: vllm.env\n"
        "    command: --model m --gpu-memory-utilization ${FRACTION}\n"
        "  b:\n    image: vllm/vllm-openai\n    profiles: [big]\n    command: --model ${NO_SUCH_VARIABLE_HERE}\n"
    )
    result = run("--from-compose", str(path), "--gpu-total", "24GiB")
    (server,) = parse_config(result.stdout).servers
    assert server.budget is not None
    assert server.budget.fraction == 0.3
    assert "VLLM_CPU_OFFLOAD_GB never existed" in result.stdout
    assert "no value for NO_SUCH_VARIABLE_HERE" in result.stderr
    assert "off, and not judged: b; give the profile with --profile" in result.stderr
    both = run("--from-compose", str(path), "--gpu-total", "24GiB", "--profile", "big")
    assert len(parse_config(both.stdout).servers) == 2
    assert "not judged" not in both.stderr
    (tmp_path / ".env").write_text("FRACTION=0.3\nCOMPOSE_PROFILES=small, big\n")
    assert len(parse_config(run("--from-compose", str(path), "--gpu-total", "24GiB").stdout).servers) == 2
    other = run("--from-compose", str(path), "--gpu-total", "24GiB", "--profile", "small")
    assert len(parse_config(other.stdout).servers) == 1, "the option wins, as with Compose"


def test_a_vllm_config_file_beside_the_compose_file_is_read(tmp_path: Path) -> None:
    """`--config serve.yaml` counts where the file can be found, else that it was not read is said."""
    (tmp_path / "serve.yaml").write_text("gpu-memory-utilization: 0.25\nport: 9000\n")
    path = tmp_path / "compose.yaml"
    path.write_text("services:\n  a:\n    image: vllm/vllm-openai\n    command: --model m --config serve.yaml\n")
    (server,) = parse_config(run("--from-compose", str(path), "--gpu-total", "24GiB").stdout).servers
    assert (server.url, server.budget and server.budget.fraction) == ("http://a:9000", 0.25)
    (tmp_path / "serve.yaml").unlink()
    assert "was not read" in run("--from-compose", str(path), "--gpu-total", "24GiB").stdout


def test_nothing_is_executed(tmp_path: Path) -> None:
    """Commands and substitutions in the file are text."""
    marker = tmp_path / "ran"
    path = tmp_path / "compose.yaml"
    path.write_text(
        "services:\n  a:\n    image: vllm/vllm-openai\n"
        f"    command: --model m --served-model-name $$(touch {marker}) `touch {marker}`\n"
        f"  b:\n    image: x\n    command: sh -c 'touch {marker}; vllm serve m'\n"
        "  c:\n    image: x\n    command: !!python/object/apply:os.system ['true']\n"
    )
    run("--from-compose", str(path), "--gpu-total", "24GiB")
    assert not marker.exists()


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    """--output writes a new file and refuses an existing one."""
    target = tmp_path / "vllmeter.yaml"
    assert run("--from-compose", str(EXAMPLE), "--gpu-total", "24GiB", "-o", str(target)).exit_code == 0
    assert parse_config(target.read_text()).servers
    target.write_text("mine")
    again = run("--from-compose", str(EXAMPLE), "--gpu-total", "24GiB", "-o", str(target))
    assert again.exit_code == 2
    assert "exists already" in again.stderr
    assert target.read_text() == "mine"
    assert run("--from-compose", str(EXAMPLE), "--gpu-total", "24GiB", "-o", "/proc/no/such").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        ([], 2, "give either"),
        (["--from-compose", str(EXAMPLE), "--from-processes"], 2, "give either"),
        (["--from-compose", "/no/such/file"], 2, "no file that can be read"),
        (["--from-compose", str(EXAMPLE), "--gpu-total", "lots"], 2, "--gpu-total: 'lots' is no size"),
        (["--from-compose", str(EXAMPLE), "--gpu-total", "24"], 2, "--gpu-total: 24 is 24 bytes"),
    ],
)
def test_wrong_use_is_one_clear_message(
    arguments: list[str], code: int, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mistake names what is wrong; nothing is printed as a configuration."""
    monkeypatch.setattr(module, "_read_gpus", lambda: NvmlReading(1.0, 1.0, False, "no driver"))
    result = run(*arguments)
    assert result.exit_code == code
    assert part in result.stderr
    assert result.stdout == ""


def test_a_file_without_vllm_and_a_broken_one(tmp_path: Path) -> None:
    """No vLLM service is exit 1 with what was looked for; broken YAML is exit 2 with its line."""
    path = tmp_path / "c.yaml"
    path.write_text("services:\n  db: {image: postgres}\n")
    none = run("--from-compose", str(path), "--gpu-total", "8GiB")
    assert (none.exit_code, none.stdout) == (1, "")
    assert "no service runs vLLM" in none.stderr
    path.write_text("services:\n  a: {image\n  b: [\n")
    broken = run("--from-compose", str(path), "--gpu-total", "8GiB")
    assert broken.exit_code == 2
    assert "not valid YAML" in broken.stderr


# --------------------------------------------------------------------------- the card


def card(total: int, name: str = "NVIDIA H200", index: int = 0) -> GpuReading:
    return GpuReading(
        index, f"GPU-{index}", name, memory_total_bytes=total, memory_reserved_bytes=0, memory_free_bytes=total
    )


def test_the_card_is_read_from_nvml_when_all_are_alike() -> None:
    """One size: its total and context; different sizes or no driver: unknown, since a plan names no card."""
    alike = NvmlReading(1.0, 1.0, True, None, (card(8 * GIB), card(8 * GIB, index=1)))
    total, context = card_of(alike)
    assert total.value == 8 * GIB
    assert context is not None
    assert not context.estimate
    mixed = NvmlReading(1.0, 1.0, True, None, (card(8 * GIB), card(24 * GIB, index=1)))
    assert card_of(mixed)[0].value is None
    assert card_of(NvmlReading(1.0, 1.0, False, "no driver"))[0].reason == "no driver"


# --------------------------------------------------------------------------- processes


def process(pid: int, line: str, ppid: int = 1, **extra: Any) -> HostProcess:
    return HostProcess(pid, ppid, 1, "vllm", tuple(line.split()), **extra)


def table(*processes: HostProcess) -> ProcessTable:
    return ProcessTable(1.0, {p.pid: p for p in processes})


def test_servers_from_processes() -> None:
    """A unit, a plain process and a container: name, URL, match, log and budget of each; children do not count."""
    blocks, plans = blocks_of_processes(
        table(
            process(10, "vllm serve m --port 8005 --gpu-memory-utilization 0.4", listening_ports=(8005,)),
            process(11, "vllm serve m --port 8005", ppid=10),
            process(20, "vllm serve Qwen/Qwen3-1.7B --port 8002", unit="vllm-chat.service", listening_ports=(8002,)),
            process(30, "vllm serve /models/bge-m3", container_id="c" * 64, listening_ports=(8000,)),
            process(40, "python train.py"),
            HostProcess(50, 1, 1, "VLLM::EngineCor", ("VLLM::EngineCore",)),
        )
    )
    rows = [(b.name, b.url, b.match, b.log, b.fraction) for b in blocks]
    assert rows == [
        ("bge-m3", "http://127.0.0.1:8000", ("container", "c" * 12), ("docker", "c" * 12), None),
        ("vllm-chat", "http://127.0.0.1:8002", ("unit", "vllm-chat.service"), ("journal", "vllm-chat.service"), None),
        ("m", "http://127.0.0.1:8005", ("port", "8005"), None, 0.4),
    ]
    assert len(plans) == 3
    assert len(parse_config(render_config(blocks, source="x")).servers) == 3


def test_equal_names_are_told_apart() -> None:
    """Two servers of one model get different names; a served name wins over the model's path."""
    blocks, _ = blocks_of_processes(
        table(
            process(101, "vllm serve /m/a --served-model-name chat --port 1", listening_ports=(1,)),
            process(102, "vllm serve /m/a --served-model-name chat --port 2", listening_ports=(2,)),
        )
    )
    assert [block.name for block in blocks] == ["chat", "chat-2"]


def test_unreadable_sockets_use_the_port_of_the_command_line() -> None:
    """Another user's process: its port comes from its flags and the comment says so."""
    (block,), _ = blocks_of_processes(table(process(101, "vllm serve m --port 8123")))
    assert block.url == "http://127.0.0.1:8123"
    assert "port from its command line" in block.url_note


def test_no_server_on_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs: exit 1 and no configuration."""
    monkeypatch.setattr(module, "_read_gpus", lambda: NvmlReading(1.0, 1.0, False, "no driver"))
    monkeypatch.setattr("vllmeter.host.proc.ProcReader.read", lambda *_: table())
    result = run("--from-processes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no vLLM server runs on this host" in result.stderr
