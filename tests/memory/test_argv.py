"""Command lines: which process is a server, what role a title has, and that no secret is kept."""

from __future__ import annotations

import pytest

from vllmeter.memory.argv import is_server, kept_environment, mask_argv, mask_text, program_name, title_role

SERVERS = [
    ["/venv/bin/python3", "/venv/bin/vllm", "serve", "/models/m", "--port", "8000"],
    ["python3", "-m", "vllm.entrypoints.cli.main", "serve", "/models/m"],
    ["python", "-u", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"],
    ["/usr/bin/python3.12", "-X", "dev", "/x/vllm/entrypoints/openai/api_server.py", "--model", "m"],
    ["vllm", "serve", "m"],
    ["/usr/local/bin/vllm", "serve", "m"],
]
NO_SERVERS = [
    ["bash", "-c", "vllm serve m"],
    ["docker", "exec", "x", "vllm", "serve", "m"],
    ["timeout", "100", "vllm", "serve", "m"],
    ["python3", "/venv/bin/vllm", "bench", "serve", "--model", "m"],
    ["python3", "/venv/bin/vllmeter", "run", "x", "--", "vllm", "serve", "m"],
    ["python", "-c", "from multiprocessing.spawn import spawn_main", "vllm", "serve"],
    ["python", "train.py", "vllm", "serve"],
    ["grep", "vllm", "serve"],
    ["VLLM::EngineCore"],
    ["python"],
    [],
]


@pytest.mark.parametrize("argv", SERVERS)
def test_server_processes_are_known(argv: list[str]) -> None:
    """Every way in which a server is started."""
    assert is_server(argv)


@pytest.mark.parametrize("argv", NO_SERVERS)
def test_other_processes_are_no_servers(argv: list[str]) -> None:
    """What only mentions vllm serve is none."""
    assert not is_server(argv)


@pytest.mark.parametrize(
    ("argv", "comm", "role"),
    [
        (["VLLM::EngineCore"], "VLLM::EngineCor", "engine_core"),
        (["VLLM::EngineCore_DP1"], "VLLM::EngineCor", "engine_core"),
        (None, "VLLM::EngineCor", "engine_core"),
        (["VLLM::Worker_DP0_TP1"], "VLLM::Worker_TP", "worker"),
        (None, "VLLM::Worker_TP", "worker"),
        (["VLLM::Worker"], "VLLM::Worker", "worker"),
        (["prod::EngineCore"], "prod::EngineCor", "engine_core"),
        (["VLLM::APIServer_0"], "VLLM::APIServer", "api_server"),
        (["VLLM::DPCoordinator"], "VLLM::DPCoordin", "other"),
        (["ray::RayWorkerWrapper.execute_method"], "ray::RayWorkerW", "worker"),
        (["python", "x.py"], "python", None),
        (["std::thing"], "std::thing", None),
    ],
)
def test_roles_by_title(argv: list[str] | None, comm: str, role: str | None) -> None:
    """Titles with any prefix, and names cut to 15 characters."""
    assert title_role(argv, comm) == role


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["vllm", "serve", "m", "--api-key", "s3cret"], ("vllm", "serve", "m", "--api-key", "***")),
        (["x", "--api-key", "k1", "k2", "--port", "1"], ("x", "--api-key", "***", "***", "--port", "1")),
        (["x", "--api_key=s3cret"], ("x", "--api_key=***")),
        (["x", "--api-k", "s3cret"], ("x", "--api-k", "***")),
        (["x", "--hf-token", "s3cret"], ("x", "--hf-token", "***")),
        (["x", "--max-num-batched-tokens", "8192"], ("x", "--max-num-batched-tokens", "8192")),
        (["x", "--tokenizer", "t", "--ssl-keyfile", "/k.pem"], ("x", "--tokenizer", "t", "--ssl-keyfile", "/k.pem")),
        (["sh", "-c", "VLLM_API_KEY=s3cret vllm serve m --api-key s3cret2"],
         ("sh", "-c", "VLLM_API_KEY=*** vllm serve m --api-key ***")),
        (["x", "--otlp-traces-endpoint", "http://me:s3cret@host:1"],
         ("x", "--otlp-traces-endpoint", "http://***@host:1")),
        (["x", "--kv-transfer-config", '{"api_key": "s3cret", "kv_role": "kv_both"}'],
         ("x", "--kv-transfer-config", '{"api_key": "***", "kv_role": "kv_both"}')),
        (["curl", "-H", "Authorization: Bearer s3cret"], ("curl", "-H", "Authorization: Bearer ***")),
    ],
)  # fmt: skip
def test_secrets_are_masked(argv: list[str], expected: tuple[str, ...]) -> None:
    """Keys, tokens, passwords and URL credentials never leave this module; look-alikes stay."""
    assert mask_argv(argv) == expected
    assert "s3cret" not in " ".join(mask_argv(argv))


def test_environment_is_an_allow_list_without_secrets() -> None:
    """Only what is used, never a key, whatever it is called."""
    kept = kept_environment(
        {
            "VLLM_API_KEY": "s3cret",
            "VLLM_SOME_TOKEN": "s3cret",
            "HF_TOKEN": "s3cret",
            "AWS_SECRET_ACCESS_KEY": "s3cret",
            "PATH": "/bin",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "VLLM_USE_V1": "1",
            "VLLM_PROXY": "http://me:s3cret@h",
        }
    )
    assert kept == {"CUDA_VISIBLE_DEVICES": "0,1", "VLLM_USE_V1": "1", "VLLM_PROXY": "http://***@h"}


def test_numbers_of_tokens_and_tokenizers_are_no_secrets() -> None:
    """Masked, ``--max-num-batched-tokens=2048`` would be a flag that we do not know."""
    argv = (
        *("vllm", "serve", "m", "--max-num-batched-tokens=2048", "--tokenizer=org/t"),
        *("--long-prefill-token-threshold=4", "--long-prefill-token-threshold", "4"),
    )
    assert mask_argv(argv) == argv
    text = "max_num_batched_tokens=2048, long_prefill_token_threshold=4; TOKENIZERS_PARALLELISM=false"
    assert mask_text(text) == text
    assert mask_text("TOKEN=4 MY_TOKENS=ab HF_TOKEN_2=x1") == "TOKEN=*** MY_TOKENS=*** HF_TOKEN_2=***"


def test_masking_keeps_plain_text() -> None:
    """No secret, no change."""
    text = "vllm serve /models/Qwen3-1.7B --tokenizer-mode auto --enable-prefix-caching"
    assert mask_text(text) == text
    text = (
        "--model /m/sk-hynix-llm-7b-instruct-0123456789 hf_transfer=1 task-0123456789abcdef0123456789 no API key given"
    )
    assert mask_text(text) == text


@pytest.mark.parametrize(
    ("argv", "comm", "name"),
    [
        (["/usr/lib/xorg/Xorg", ":0"], "Xorg", "Xorg"),
        (["python3", "-u", "/home/me/train.py", "--lr", "1"], "python3", "python train.py"),
        (["python", "-m", "torch.distributed.run", "x.py"], "python", "python -m torch.distributed.run"),
        (["python", "-c", "import x"], "python", "python -c"),
        (["python"], "python", "python"),
        (["ray::IDLE"], "ray::IDLE", "ray::IDLE"),
        (None, "gnome-shell", "gnome-shell"),
        ([], "", "unknown"),
    ],
)
def test_program_names_are_short_and_without_arguments(argv: list[str] | None, comm: str, name: str) -> None:
    """A label value: the executable and the script or module."""
    assert program_name(argv, comm) == name
