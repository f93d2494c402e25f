"""Events on the time axis of every dashboard: runs, restarts, changed settings, XID errors, firing alerts."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.models import common

from house import BLUE, DATASOURCE, ORANGE, PURPLE, VERMILLION, YELLOW
from queries import EXPORTER, GPU, of


def _query(name: str, colour: str, expression: str, title: str, text: str, tags: str) -> d.AnnotationQuery:
    return (
        d.AnnotationQuery()
        .name(name)
        .datasource(common.DataSourceRef(type_val="prometheus", uid=DATASOURCE))
        .enable(True)
        .hide(False)
        .icon_color(colour)
        .expr(expression)
        .title_format(title)
        .text_format(text)
        .tag_keys(tags)
        .step("")
    )


def all_annotations() -> list[d.AnnotationQuery]:
    """In the order of the switches at the top of a dashboard."""
    return [
        _query(
            "Runs",
            BLUE,
            f"max by (run, scenario, host) ({of('run_active')}) == 1",
            "run {{run}}",
            "scenario {{scenario}} on {{host}}",
            "scenario",
        ),
        _query(
            "Restarts",
            PURPLE,
            f"{of('server_last_restart_timestamp_seconds')} * 1000",
            "{{server}} restarted",
            "on {{host}}",
            "server,host",
        ).use_value_for_time(True),
        _query(
            "Config changes",
            ORANGE,
            f"{of('server_last_config_change_timestamp_seconds')} * 1000",
            "{{server}} has other settings",
            "on {{host}}; Load test shows which",
            "server,host",
        ).use_value_for_time(True),
        _query(
            "XID errors",
            YELLOW,
            f"{of('gpu_last_xid_timestamp_seconds', by=GPU)} * 1000",
            "XID error of GPU {{gpu}}",
            "on {{host}}; its code is vllmeter_gpu_xid_last, what it means stands in the runbook VllmeterGpuXid",
            "gpu,host",
        ).use_value_for_time(True),
        _query(
            "Alerts",
            VERMILLION,
            "max by (alertname, severity, server, host) "
            f'(ALERTS{{{EXPORTER},alertname=~"Vllmeter.+",alertname!="VllmeterWatchdog",alertstate="firing"}})',
            "{{alertname}}",
            "{{server}} on {{host}}",
            "severity",
        ),
    ]
