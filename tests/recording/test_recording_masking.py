"""Masking takes secrets and names out and leaves everything else as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmeter.recording.format import Answer, RecordingReader
from vllmeter.recording.masking import Masker
from vllmeter.snapshot import HostProcess, ProcessTable

CAPTURES = Path(__file__).parent.parent / "captures"


@pytest.fixture
def masker() -> Masker:
    """Masks host "gpu-box-7" and the word "acme"."""
    return Masker(["gpu-box-7", "gpu-box-7.lab.example", "localhost"], ["acme"])


@pytest.mark.parametrize(
    "text, masked",
    [
        ("sk-abcdefgh12345678", "masked"),
        ("hf_abcdefghijklmnop1234", "masked"),
        ("ghp_abcdefghijklmnop1234", "masked"),
        ("AKIAABCDEFGHIJKLMNOP", "masked"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig-part", "masked"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer masked"),
        ("http://ann:geheim@127.0.0.1:8000/x", "http://masked@127.0.0.1:8000/x"),
        ("/home/ann/models/x", "/home/user/models/x"),
        ("/Users/ann/x", "/home/user/x"),
        ("/root/.cache/x and /root", "/home/user/.cache/x and /home/user"),
        ("/rooted/x", "/rooted/x"),
        ("tcp://10.1.2.3:5000 10.1.2.3 10.9.9.9", "tcp://192.0.2.1:5000 192.0.2.1 192.0.2.2"),
        ("127.0.0.1 0.0.0.0", "127.0.0.1 0.0.0.0"),
        ("gpu-box-7.lab.example GPU-BOX-7 gpu-box-70 localhost", "host host gpu-box-70 localhost"),
        ("the acme model, acmes", "the masked model, acmes"),
        ("Qwen3-1.7B 580.159.04 0.26.0 /models/x", "Qwen3-1.7B 580.159.04 0.26.0 /models/x"),
        ("task-scheduler-with-a-long-name", "task-scheduler-with-a-long-name"),
    ],
)
def test_texts(masker: Masker, text: str, masked: str) -> None:
    """Credentials, homes, addresses, hosts and given words go; versions, models and paths stay."""
    assert masker.text(text) == masked


@pytest.mark.parametrize(
    "argv, masked",
    [
        (["--api-key", "one", "two", "--port", "8000"], ["--api-key", "masked", "masked", "--port", "8000"]),
        (["--api-key=one", "x"], ["--api-key=masked", "x"]),
        (["--hf-token", "x"], ["--hf-token", "masked"]),
        (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
        (["--tokenizer", "/models/x", "--skip-tokenizer-init"], ["--tokenizer", "/models/x", "--skip-tokenizer-init"]),
        (["--long-prefill-token-threshold", "4"], ["--long-prefill-token-threshold", "4"]),
        (["VLLM_API_KEY=abc", "vllm", "serve"], ["VLLM_API_KEY=masked", "vllm", "serve"]),
        (["--ssl-keyfile", "/home/ann/k.pem"], ["--ssl-keyfile", "/home/user/k.pem"]),
        (["--ssl-keyfile-password", "x"], ["--ssl-keyfile-password", "masked"]),
    ],
)
def test_command_lines(masker: Masker, argv: list[str], masked: list[str]) -> None:
    """All values of a secret option are masked; options about tokens of text are not secret."""
    assert masker.argv(argv) == tuple(masked)


def test_label_values_are_masked_and_nothing_else(masker: Masker) -> None:
    """Names, help texts, values and timestamps stay byte for byte, even where a host is called like a metric."""
    body = (
        b"# HELP acme:x Path /home/ann is fine here\n"
        b'acme:x{path="/home/ann/m",api_key="short",note="a \\"quoted\\" 10.0.0.5"} 1.0 123\n'
        b"acme_plain 2.0\n"
        b'acme:y{le="+Inf"} 3.0 # {trace_id="sk-abcdefgh12345678"} 1.0\n'
        b"\xff broken\n"
    )
    assert masker.body(body) == (
        b"# HELP acme:x Path /home/ann is fine here\n"
        b'acme:x{path="/home/user/m",api_key="masked",note="a \\"quoted\\" 192.0.2.1"} 1.0 123\n'
        b"acme_plain 2.0\n"
        b'acme:y{le="+Inf"} 3.0 # {trace_id="masked"} 1.0\n'
        b"\xff broken\n"
    )


def test_real_bodies_are_left_alone(masker: Masker) -> None:
    """Bodies of the captures hold nothing to mask and come back as the same object."""
    with RecordingReader(CAPTURES / "vllm-0.26.0-h200-pressure.vmrec") as reader:
        bodies = [record.body for record in reader if isinstance(record, Answer)]
    assert all(masker.body(body) is body for body in bodies[:30])


def test_processes(masker: Masker) -> None:
    """Command line, environment, cgroup and reasons of a process are masked; what identifies it stays."""
    item = HostProcess(
        7,
        1,
        99,
        "python3",
        ("vllm", "serve", "/home/ann/m", "--api-key", "k"),
        cgroup="/user.slice/acme",
        environ={"HF_TOKEN": "x", "CUDA_VISIBLE_DEVICES": "0"},
        absent={"rss_bytes": "/home/ann: denied"},
    )
    masked = masker.table(ProcessTable(1.0, {7: item})).processes[7]
    assert masked == HostProcess(
        7,
        1,
        99,
        "python3",
        ("vllm", "serve", "/home/user/m", "--api-key", "masked"),
        cgroup="/user.slice/masked",
        environ={"HF_TOKEN": "masked", "CUDA_VISIBLE_DEVICES": "0"},
        absent={"rss_bytes": "/home/user: denied"},
    )


@given(st.text(alphabet='ab{}="\\\n# 1.', max_size=60))
def test_masking_keeps_the_shape_of_any_body(text: str) -> None:
    """Whatever the body looks like, the number of lines stays and masking again changes nothing."""
    masker = Masker(["aab"], ["abb"])
    once = masker.body(text.encode())
    assert once.count(b"\n") == text.count("\n")
    assert masker.body(once) == once
