"""A vLLM command line is read as vLLM reads it: argparse itself is the oracle."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmeter.memory import flags, serve_flags
from vllmeter.memory.flags import human_readable_int, parse_arguments, parse_command

ROOT = Path(__file__).resolve().parents[2]


def oracle() -> argparse.ArgumentParser:
    """The same options in a real argparse parser, as vLLM builds it."""
    parser = argparse.ArgumentParser(prog="vllm serve", add_help=False, exit_on_error=False)
    parser.add_argument("model_tag", nargs="?")
    for names, kind in serve_flags.OPTIONS:
        if kind == "none":
            positive = [name for name in names if not name.startswith("--no-")]
            dest = next(name for name in names if name.startswith("--")).lstrip("-").replace("-", "_")
            dest = positive[0].lstrip("-").replace("-", "_") if positive[0].startswith("--") else dest
            parser.add_argument(*positive, dest=dest, action="store_const", const=True)
            negative = [name for name in names if name.startswith("--no-")]
            if negative:
                parser.add_argument(*negative, dest=dest, action="store_const", const=False)
        elif kind == "many":
            parser.add_argument(*names, nargs="+")
        elif kind == "optional":
            parser.add_argument(*names, nargs="?", const=True)
        else:
            parser.add_argument(*names)
    return parser


ORACLE = oracle()
SINGLE = sorted(
    names for names, kind in serve_flags.OPTIONS if kind in ("one", "size") and names[0] not in ("--config", "--model")
)
SWITCHES = sorted(names for names, kind in serve_flags.OPTIONS if kind == "none" and "--help" not in names)
LISTS = sorted(names for names, kind in serve_flags.OPTIONS if kind == "many")
VALUES = st.sampled_from(["4", "0.5", "2g", "auto", "/models/x", "a b", "-1", "-0.5", "{}", "x=y", "None"])


@st.composite
def one_option(draw: st.DrawFn) -> list[str]:
    """A random option as a user may write it: any name, underscores, a prefix, with or without ``=``."""
    shape = draw(st.sampled_from(["single", "switch", "list"]))
    names = draw(st.sampled_from({"single": SINGLE, "switch": SWITCHES, "list": LISTS}[shape]))
    name = draw(st.sampled_from(names))
    if name.startswith("--"):
        shorter = draw(st.integers(min_value=4, max_value=len(name)))
        if draw(st.booleans()):
            candidates = {n for n in ORACLE._option_string_actions if n.startswith(name[:shorter])}
            if len(candidates) == 1:
                name = name[:shorter]
        if draw(st.booleans()):
            name = "--" + name[2:].replace("-", "_")
    if shape == "switch":
        return [name]
    if shape == "list":
        return [name, *draw(st.lists(VALUES, min_size=1, max_size=3))]
    value = draw(VALUES)
    return [f"{name}={value}"] if draw(st.booleans()) else [name, value]


def dashed(words: list[str]) -> list[str]:
    """vLLM's own preparation before argparse: underscores in names become dashes."""
    out = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            head, dot, tail = name.partition(".")
            out.append(head.replace("_", "-") + dot + tail + equals + value)
        else:
            out.append(word)
    return out


@settings(max_examples=300, deadline=None)
@given(st.lists(one_option(), max_size=6))
def test_random_command_lines_are_read_as_argparse_reads_them(options: list[list[str]]) -> None:
    """Names, prefixes, `=`, lists, repeats and the positional model give the values that argparse gives."""
    words = ["/models/m", *[word for option in options for word in option]]
    command = parse_arguments(words)
    expected = vars(ORACLE.parse_args(dashed(words)))
    assert command.model == expected.pop("model_tag")
    for name, value in expected.items():
        mine = command.options.get(name)
        assert mine == (tuple(value) if isinstance(value, list) else value), name
    assert not [problem for problem in command.problems if problem.kind in ("unknown", "ambiguous", "unused")]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_words_at_all_never_raise(words: list[str]) -> None:
    """Whatever stands in a command line, the result is a command with problems, not an exception."""
    command = parse_arguments(words)
    assert command.entry == "serve"
    assert all(problem.message for problem in command.problems)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2g", 2_000_000_000),
        ("2G", 2_147_483_648),
        ("25.6k", 25_600),
        ("1k", 1_000),
        ("1K", 1_024),
        ("1T", 2**40),
        ("4096", 4096),
        ("-1", -1),
    ],
)
def test_human_readable_integers(text: str, value: int) -> None:
    """Lower case is decimal, upper case is binary, as vLLM's help text says."""
    assert human_readable_int(text) == value


@pytest.mark.parametrize("text", ["1.5G", "4GiB", "4GB", "4 gb", "two", ""])
def test_what_vllm_refuses_is_refused(text: str) -> None:
    """Decimals with a binary suffix, GiB and GB are no sizes for vLLM: the message names the text."""
    with pytest.raises(ValueError, match=repr(text)[1:-1] if text else "''"):
        human_readable_int(text)


def test_the_message_for_gib_says_what_to_write() -> None:
    """The common mistake `4GiB` comes with the notation that works."""
    with pytest.raises(ValueError, match="write 4G"):
        human_readable_int("4GiB")


REAL_CHAT = (
    "python3 -m vllm.entrypoints.cli.main serve /models/Qwen3-1.7B --served-model-name Qwen3-1.7B "
    "--port 8002 --host 127.0.0.1 --gpu-memory-utilization 0.06 --load-format dummy --enforce-eager "
    "--attention-backend TRITON_ATTN --max-model-len 4096 --max-num-seqs 64 --num-gpu-blocks-override 700 "
    "--enable-prefix-caching --kv-cache-metrics --kv-cache-metrics-sample 1.0 --max-num-batched-tokens 2048"
)


def test_the_real_command_line_of_the_chat_model() -> None:
    """The recorded command line on the H200 gives the facts that the server itself reported."""
    command = parse_command(REAL_CHAT.split())
    assert command is not None
    assert (command.entry, command.model, command.port) == ("serve", "/models/Qwen3-1.7B", 8002)
    assert command.served_names == ("Qwen3-1.7B",)
    assert command.fraction == 0.06
    assert command.integer("num_gpu_blocks_override") == 700
    assert command.integer("max_model_len") == 4096
    assert command.eager
    assert not command.pooling
    assert command.switch("enable_prefix_caching") is True
    assert command.problems == ()


@pytest.mark.parametrize(
    ("line", "entry", "model"),
    [
        ("vllm serve Qwen/Qwen3-0.6B --port 1", "serve", "Qwen/Qwen3-0.6B"),
        ("/venv/bin/python3 /venv/bin/vllm serve m", "serve", "m"),
        ("python -m vllm.entrypoints.openai.api_server --model m -tp 2", "api_server", "m"),
        ("python3 /opt/vllm/entrypoints/openai/api_server.py --model m", "api_server", "m"),
        ("uv run vllm serve m", "serve", "m"),
        ("nsys profile -o x vllm serve m --port 1", "serve", "m"),
        ("sh -c 'exec vllm serve m --port 1'", "serve", "m"),
        ("bash -lc 'export A=1 && vllm serve m --port 1; echo done'", "serve", "m"),
        ("vllm serve --model=m --port 1", "serve", "m"),
        ("vllm serve --port 1 m", "serve", "m"),
    ],
)
def test_servers_are_found_behind_wrappers(line: str, entry: str, model: str) -> None:
    """Interpreters, wrappers and shells before the server do not hide it."""
    command = parse_command(line)
    assert command is not None
    assert (command.entry, command.model) == (entry, model)
    assert [problem for problem in command.problems if problem.kind != "older"] == []


@pytest.mark.parametrize("line", ["vllm bench serve m", "python train.py", "", "sh -c 'vllm bench", "vllm chat"])
def test_other_commands_are_no_server(line: str) -> None:
    """A client, another program, or an unreadable line gives None."""
    assert parse_command(line) is None


def test_variables_before_the_command_are_environment() -> None:
    """`VLLM_X=1 vllm serve` sets it, and a variable that never existed is a problem with its remedy."""
    command = parse_command("CUDA_VISIBLE_DEVICES=1 VLLM_CPU_OFFLOAD_GB=4 vllm serve m")
    assert command is not None
    assert command.environment["CUDA_VISIBLE_DEVICES"] == "1"
    (problem,) = command.problems
    assert problem.kind == "environment"
    assert "--kv-offloading-size" in problem.message


@pytest.mark.parametrize("words", [["-O2"], ["-O=2"], ["-O", "2"], ["--optimization-level", "2"], ["--opt=2"]])
def test_every_form_of_the_optimization_level(words: list[str]) -> None:
    """`-O2`, `-O=2` and `-O 2` are the optimization level."""
    command = parse_arguments(["m", *words])
    assert command.text("optimization_level") == "2"
    assert command.model == "m"
    assert command.problems == ()


def test_dotted_options_are_merged_into_their_parent() -> None:
    """`-cc.mode=3 --compilation-config.pass_config.x true` is one JSON object, `+` makes a list."""
    command = parse_arguments(
        [
            "m",
            "-cc.mode=3",
            "--compilation_config.pass_config.fuse_x",
            "true",
            "-cc.sizes+",
            "1,2",
            "-cc.n=2k",
        ]
    )
    assert command.nested("compilation_config") == {
        "mode": 3,
        "pass_config": {"fuse_x": True},
        "sizes": ["1", "2"],
        "n": 2000,
    }


def test_graph_mode_none_means_eager() -> None:
    """CUDA graphs are off with --enforce-eager, -O0 or cudagraph_mode NONE."""
    assert parse_arguments(["m", "-O0"]).eager
    assert parse_arguments(["m", "--compilation-config", '{"cudagraph_mode": "NONE"}']).eager
    assert parse_arguments(["m", "-cc.cudagraph_mode=none"]).eager
    assert not parse_arguments(["m"]).eager
    assert not parse_arguments(["m", "--enforce-eager", "--no-enforce-eager"]).eager


def test_config_file_values_come_before_the_command_line() -> None:
    """Options of --config count, and those of the command line win; false gives the --no- form."""
    config = {
        "model": "from-file",
        "gpu-memory-utilization": 0.4,
        "port": 9000,
        "enable-prefix-caching": False,
        "disable-log-stats": True,
        "served-model-name": ["a", "b"],
        "compilation-config": {"cudagraph_mode": "NONE"},
    }
    command = parse_arguments(["--config", "/etc/vllm.yaml", "--port", "9001"], config=config)
    assert command.model == "from-file"
    assert command.fraction == 0.4
    assert command.port == 9001
    assert command.switch("enable_prefix_caching") is False
    assert command.switch("disable_log_stats") is True
    assert command.served_names == ("a", "b")
    assert command.eager
    assert command.config_file == "/etc/vllm.yaml"
    assert command.problems == ()
    assert command.repeated == ()
    assert parse_arguments(["cli-model", "--config=x.yaml"], config=config).model == "cli-model"


def test_a_config_file_that_was_not_read_is_a_problem() -> None:
    """Without the file's content its options are unknown, and that is said."""
    (problem,) = parse_arguments(["m", "--config", "x.yaml"]).problems
    assert "not known here" in problem.message


@pytest.mark.parametrize(
    ("words", "kind", "part"),
    [
        (["--prefix-caching-memory-percentage", "0.1"], "never_existed", "--enable-prefix-caching"),
        (["--cuda-graph-capture-size", "512"], "never_existed", "--max-cudagraph-capture-size"),
        (["--cuda_graph_capture_size=512"], "never_existed", "--max-cudagraph-capture-size"),
        (["--swap-space", "4"], "older", "0.18"),
        (["--cuda-graph-sizes", "1", "2"], "older", "--cudagraph-capture-sizes"),
        (["--no-such-flag", "3"], "unknown", "0.32.0"),
        (["--enable", "--port", "1"], "ambiguous", "--enable-lora"),
        (["--gpu-memory-utilization", "60"], "value", "not a percentage"),
        (["--gpu-memory-utilization", "sixty"], "value", "sixty"),
        (["--kv-cache-memory-bytes", "4GiB"], "value", "write 4G"),
        (["--port"], "value", "no value"),
        (["--enforce-eager=true"], "value", "takes no value"),
        (["stray"], "unused", "stray"),
    ],
)
def test_what_vllm_refuses_is_a_problem_with_its_remedy(words: list[str], kind: str, part: str) -> None:
    """Each wrong flag is reported once with what to use, and its value is not taken for the model."""
    command = parse_arguments(["m", *words])
    (problem,) = command.problems
    assert problem.kind == kind
    assert part in problem.message
    assert command.model == "m"


def test_vllms_own_hint_is_read_as_the_flag_it_abbreviates() -> None:
    """`--kv-cache-memory=N`, as vLLM's log prints it, is --kv-cache-memory-bytes."""
    command = parse_arguments(["m", "--kv-cache-memory=5013293876"])
    assert command.integer("kv_cache_memory_bytes") == 5_013_293_876
    assert [problem.kind for problem in command.problems] == ["older"]


def test_the_last_of_repeated_options_wins_and_is_named() -> None:
    """vLLM warns about duplicates and takes the last."""
    command = parse_arguments(["m", "--port", "1", "--gpu-memory-utilization=0.3", "--gpu_memory_utilization", "0.5"])
    assert command.fraction == 0.5
    assert command.repeated == ("--gpu-memory-utilization",)


def test_the_alias_for_other_devices_is_the_same_option() -> None:
    """--device-memory-utilization (0.31 and later) is --gpu-memory-utilization."""
    assert parse_arguments(["m", "--device-memory-utilization", "0.25"]).fraction == 0.25


def test_max_model_len_auto() -> None:
    """`-1` and `auto` mean: as long as fits; a plain number of tokens may be human-readable."""
    assert parse_arguments(["m", "--max-model-len", "-1"]).integer("max_model_len") == -1
    assert parse_arguments(["m", "--max-model-len", "auto"]).integer("max_model_len") == -1
    assert parse_arguments(["m", "--max-model-len", "8K"]).integer("max_model_len") == 8192
    assert parse_arguments(["m"]).integer("max_model_len") is None


@pytest.mark.parametrize(
    ("words", "pooling"),
    [
        (["--runner", "pooling"], True),
        (["--runner=generate"], False),
        (["--task", "embed"], True),
        (["--task", "generate"], False),
        ([], False),
    ],
)
def test_pooling_servers_are_known_by_their_flags(words: list[str], pooling: bool) -> None:
    """Embedding and reranking servers have no KV growth: the flags tell."""
    assert parse_arguments(["m", *words]).pooling is pooling


def test_nested_json_that_is_broken_is_empty() -> None:
    """Broken JSON in an option gives nothing rather than an exception."""
    assert parse_arguments(["m", "--kv-transfer-config", "{"]).nested("kv_transfer_config") == {}
    assert parse_arguments(["m"]).nested("kv_transfer_config") == {}


def test_the_flag_list_is_what_the_script_makes(tmp_path: Path) -> None:
    """The generator reads argparse help: names, kinds and human-readable integers."""
    help_text = tmp_path / "help.txt"
    help_text.write_text(
        "usage: vllm serve\n\noptions:\n"
        "  --api-server-count API_SERVER_COUNT, -asc API_SERVER_COUNT\n"
        "                        How many.\n"
        "  --enable-x, --no-enable-x\n"
        "                        A switch, or not: -x\n"
        "  --max-len MAX_LEN     Parse human-readable\n"
        "                        integers like '1k'.\n"
        "  --mode ['a', 'b']\n"
        "                        Modes.\n"
        "  --names NAMES [NAMES ...]\n"
        "  --token [TOKEN]       Token.\n"
        "  -h, --help            show this\n",
        encoding="utf-8",
    )
    script = ROOT / "scripts" / "extract_serve_flags.py"
    out = subprocess.run(
        [sys.executable, str(script), "--version", "9.9", str(help_text)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    namespace: dict[str, object] = {}
    exec(out, namespace)
    assert namespace["VLLM_VERSION"] == "9.9"
    assert namespace["OPTIONS"] == (
        (("--api-server-count", "-asc"), "one"),
        (("--enable-x", "--no-enable-x"), "none"),
        (("--max-len",), "size"),
        (("--mode",), "one"),
        (("--names",), "many"),
        (("--token",), "optional"),
        (("-h", "--help"), "none"),
    )


def test_the_committed_list_knows_the_flags_that_budgets_need() -> None:
    """Every flag that budget reading relies on exists in the committed list (or is known as older)."""
    known = {name for names, _ in serve_flags.OPTIONS for name in names} | set(flags.OLDER_OPTIONS)
    needed = (
        "gpu-memory-utilization device-memory-utilization kv-cache-memory-bytes num-gpu-blocks-override "
        "max-model-len max-num-seqs max-num-batched-tokens kv-cache-dtype block-size enforce-eager "
        "cudagraph-capture-sizes max-cudagraph-capture-size compilation-config cpu-offload-gb "
        "kv-offloading-size kv-offloading-backend kv-transfer-config enable-sleep-mode enable-lora speculative-config "
        "tensor-parallel-size pipeline-parallel-size data-parallel-size quantization dtype "
        "served-model-name port host uds api-server-count config disable-log-stats runner stream-interval swap-space"
    )
    assert {"--" + name for name in needed.split()} <= known
    assert json.dumps(serve_flags.OPTIONS)
