"""compose.yaml and its variants: budgets, command lines, settings, rights.  What containers do is in the legs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from vllmeter.config.load import load_config
from vllmeter.memory.compose_file import card_findings, parse_env_file, plan_of, read_compose
from vllmeter.memory.flags import FLAG_LIST_VERSION
from vllmeter.snapshot import Quantity

ROOT = Path(__file__).parents[2]
FILES = ("compose.yaml", "compose.docker-api.yaml", "compose.existing.yaml", "compose.wsl2.yaml")
GIB = 2**30
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def services(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text(name))["services"]
    return found


@pytest.fixture(scope="module")
def plan() -> Any:
    """The vLLM services, read as `vllmeter init --from-compose` reads them."""
    compose = read_compose(text("compose.yaml"), profiles=["gpu"])
    return compose, [plan_of(server, active={"gpu"}) for server in compose.servers]


# --------------------------------------------------------------------------- the three servers


def test_every_command_line_is_one_that_vllm_reads(plan: Any) -> None:
    """No unknown, removed, repeated or badly written flag in the list of the release that is pinned."""
    compose, _ = plan
    assert [server.service for server in compose.servers] == ["vllm-chat", "vllm-embed", "vllm-reranker"]
    for server in compose.servers:
        assert server.command.problems == ()
        assert server.command.repeated == ()
        assert server.version == FLAG_LIST_VERSION
        assert server.command.fraction is not None
    assert compose.findings == ()
    assert compose.unresolved == ()


@pytest.mark.parametrize("total", [7.78, 8.00])
@pytest.mark.parametrize("context", [0.4, None], ids=["context-0.4", "context-assumed"])
def test_the_budgets_fit_an_8_gb_card(plan: Any, total: float, context: float | None) -> None:
    """With three contexts of 0.4 GiB and 0.3 GiB of desktop, and with the larger contexts that `check` assumes."""
    _, planned = plan
    desktop = 0.3 if context is not None else 0.0
    size = None if context is None else Quantity(context * GIB, "measured")
    assert card_findings(planned, Quantity((total - desktop) * GIB, "config"), context=size) == []


def test_the_users_own_figures_do_not_fit() -> None:
    """The documented counter-example is an error of ours if it passes."""
    example = (ROOT / "docs/examples/three-services.compose.yaml").read_text(encoding="utf-8")
    compose = read_compose(example.replace("0.193", "0.193"))
    planned = [plan_of(server, active=set()) for server in compose.servers]
    context = Quantity(0.4 * GIB, "measured")
    findings = card_findings(planned, Quantity((7.78 - 0.3) * GIB, "config"), context=context)
    assert [finding.id for finding in findings] == ["over-commit-with-contexts"]


def test_they_start_largest_first_and_one_after_another(plan: Any) -> None:
    """Each waits for the health of the one before; start-up profiling of two at once corrupts both."""
    compose, _ = plan
    chat, embed, reranker = compose.servers
    fractions = [server.command.fraction for server in compose.servers]
    assert fractions == sorted(fractions, reverse=True)
    assert (chat.waits_for, embed.waits_for, reranker.waits_for) == ((), ("vllm-chat",), ("vllm-embed",))


# --------------------------------------------------------------------------- settings


def test_the_example_has_every_setting_with_its_default() -> None:
    """.env.example and the files name the same variables, and say the same default."""
    example = parse_env_file(text(".env.example"))
    used: dict[str, set[str]] = {}
    for name in FILES:
        for variable, default in VARIABLE.findall(text(name)):
            used.setdefault(variable, set()).add(default)
    not_in_files = {"COMPOSE_PROFILES", "COMPOSE_PROJECT_NAME"}
    assert set(example) - not_in_files == set(used)
    for variable, defaults in used.items():
        assert defaults == {example[variable]}, (
            f"{variable}: the files say {defaults}, .env.example {example[variable]!r}"
        )


def test_images_are_pinned_by_version() -> None:
    """No image without a tag and none called latest."""
    for name in FILES:
        for service, spec in services(name).items():
            if "image" not in spec:
                continue
            image = VARIABLE.sub(lambda match: match[2], spec["image"])
            assert re.search(r":v?\d+\.\d+\.\d+$", image), f"{name}: {service}: {image}"


def test_ports_are_published_on_the_loopback_address_only() -> None:
    """Nothing here asks for a password but Grafana."""
    for name in FILES:
        for service, spec in services(name).items():
            for port in spec.get("ports", ()):
                assert port.startswith("${BIND_ADDRESS:-127.0.0.1}:"), f"{name}: {service}: {port}"


def test_rights_are_as_few_as_the_job_allows() -> None:
    """Read-only, no capability but those that are explained, no engine socket in the default, limits on everything."""
    for name in ("compose.yaml", "compose.existing.yaml"):
        for service, spec in services(name).items():
            assert spec["security_opt"] == ["no-new-privileges:true"], service
            assert "privileged" not in spec
            assert "mem_limit" in spec, service
            assert not any("docker.sock" in str(volume) for volume in spec.get("volumes", ())), service
            if service.startswith("vllm-"):
                continue
            assert spec["read_only"] is True, service
            assert spec["cap_drop"] == ["ALL"], service
            allowed = {"exporter": ["SYS_PTRACE", "DAC_READ_SEARCH"], "setup": ["DAC_OVERRIDE"]}
            assert spec.get("cap_add", []) == allowed.get(service, []), service
            assert "pids_limit" in spec, service
            assert (spec.get("pid") == "host") == (service == "exporter"), service


def test_health_is_checked_everywhere() -> None:
    """By the service or by its image (ours)."""
    for service, spec in services("compose.yaml").items():
        assert "healthcheck" in spec or "vllmeter" in spec["image"], service


def test_no_argument_of_a_check_holds_a_space() -> None:
    """Podman 4 splits arguments at spaces."""
    for service, spec in services("compose.yaml").items():
        test = spec.get("healthcheck", {}).get("test", [])
        assert not any(" " in word for word in test), service


# --------------------------------------------------------------------------- mounted files


@pytest.mark.parametrize("name", ["vllmeter.yaml", "docker-api.yaml", "demo.yaml", "existing.example.yaml"])
def test_the_exporters_configurations_load(name: str) -> None:
    """Strictly, as `serve` loads them; their servers are services."""
    settings = load_config(ROOT / "deploy" / "compose" / name)
    hosts = {server.url.partition("://")[2].partition(":")[0] for server in settings.servers}
    known = set(services("compose.yaml")) | {"vllm-chat", "vllm-embed"}
    assert hosts <= known


def test_the_engines_api_changes_nothing_but_names_and_logs() -> None:
    """docker-api.yaml is vllmeter.yaml with match, log and socket."""
    plain = load_config(ROOT / "deploy/compose/vllmeter.yaml").model_dump()
    more = load_config(ROOT / "deploy/compose/docker-api.yaml").model_dump()
    assert more.pop("docker") != plain.pop("docker")
    for server in more["servers"]:
        assert server["match"]["container"] == server["log"]["docker"] == server["name"]
        server["match"] = server["log"] = None
    assert more == plain


def test_prometheus_is_configured_as_the_documented_file() -> None:
    """deploy/compose/prometheus.yml differs from prometheus/prometheus-3x.yml in addresses only."""
    ours = yaml.safe_load(text("deploy/compose/prometheus.yml"))
    theirs = text("prometheus/prometheus-3x.yml").replace("127.0.0.1:9093", "alertmanager:9093")
    theirs = theirs.replace("127.0.0.1:9877", "exporter:9877")
    wanted = yaml.safe_load(theirs)
    assert [Path(name).name for name in ours.pop("rule_files")] == [
        Path(name).name for name in wanted.pop("rule_files")
    ]
    assert ours == wanted


def test_grafana_finds_its_data_source_and_dashboards() -> None:
    """What provisioning names is what compose.yaml gives."""
    grafana = services("compose.yaml")["grafana"]
    source = yaml.safe_load(text("grafana/provisioning/datasources/vllmeter.yaml"))["datasources"][0]
    assert source["url"] == "$PROMETHEUS_URL"
    assert grafana["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"
    provider = yaml.safe_load(text("grafana/provisioning/dashboards/vllmeter.yaml"))["providers"][0]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in grafana["volumes"]
    home = VARIABLE.sub(lambda match: match[2], grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (ROOT / "grafana/dashboards" / Path(home).name).exists()
    assert "GF_SECURITY_ADMIN_PASSWORD" not in grafana["environment"]


# --------------------------------------------------------------------------- setup.py


@pytest.fixture
def setup() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("compose_setup", ROOT / "deploy/compose/setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(setup: ModuleType, target: Path, **environ: str) -> int:
    for name in ("grafana", "alertmanager"):
        (target / name).mkdir(exist_ok=True)
    code: int = setup.main(environ, ROOT / "alerts/alertmanager.yml", target)
    return code


def test_a_password_is_made_up_once(setup: ModuleType, tmp_path: Path) -> None:
    """Without one in .env it is random, and a second start keeps it; another one in .env replaces it."""
    assert run(setup, tmp_path) == 0
    file = tmp_path / "grafana/grafana-password"
    first = file.read_text()
    assert len(first) >= 20
    assert run(setup, tmp_path) == 0
    assert file.read_text() == first
    file.chmod(0o644)
    assert run(setup, tmp_path, GRAFANA_ADMIN_PASSWORD="correct horse battery") == 0
    assert file.read_text() == "correct horse battery"


@pytest.mark.parametrize("password", ["admin", "ADMIN", "changeme", "short"])
def test_a_default_password_is_refused(
    setup: ModuleType, tmp_path: Path, password: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stack does not start with one, and says why."""
    assert run(setup, tmp_path, GRAFANA_ADMIN_PASSWORD=password) == 1
    assert "choose another one" in capsys.readouterr().err


def test_alerts_go_to_the_webhook_or_to_nobody(setup: ModuleType, tmp_path: Path) -> None:
    """With an address its paths stay; without one no receiver is left that would fail for ever."""
    assert run(setup, tmp_path, ALERT_WEBHOOK_URL="http://hook:1/base/") == 0
    file = tmp_path / "alertmanager/alertmanager.yml"
    written = yaml.safe_load(file.read_text())
    urls = [hook["url"] for receiver in written["receivers"] for hook in receiver.get("webhook_configs", ())]
    assert sorted(urls) == ["http://hook:1/base/vllmeter", "http://hook:1/base/watchdog"]
    file.chmod(0o644)
    assert run(setup, tmp_path) == 0
    written = yaml.safe_load(file.read_text())
    assert all(set(receiver) == {"name"} for receiver in written["receivers"])
    names = {receiver["name"] for receiver in written["receivers"]}
    assert {"webhook", "dead-mans-switch", "nobody"} <= names
    assert not any(key.startswith("smtp") for key in written.get("global", {}))


def test_a_bad_address_is_one_sentence(setup: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And not a stack trace in a container's log."""
    assert run(setup, tmp_path, ALERT_WEBHOOK_URL="localhost:9099") == 1
    assert "no http://" in capsys.readouterr().err
