# shellcheck shell=bash
leg_title="Prometheus at the edge and in agent mode write to a real VictoriaMetrics: same answers, and nothing lost while it was away"
leg_limit=300

# A configuration as it is shipped, with this run's addresses, a 2 s interval and, for the comparison, every series.
_fleet_config() { # SOURCE TARGET CLUSTER
  python - "$1" "$2" "$3" "$LEG_SCRATCH/exporters.json" "$_store" <<'PY'
import sys
from pathlib import Path

import yaml

source, target, cluster, exporters, store = sys.argv[1:]
data = yaml.safe_load(Path(source).read_text(encoding="utf-8"))
data["global"].update(scrape_interval="2s", scrape_timeout="2s")
if "evaluation_interval" in data["global"]:
    data["global"]["evaluation_interval"] = "2s"
data["global"]["external_labels"]["cluster"] = cluster
data["scrape_configs"][0]["file_sd_configs"] = [{"files": [exporters], "refresh_interval": "5s"}]
data["remote_write"][0]["url"] = f"{store}/api/v1/write"
data["remote_write"][0]["queue_config"]["batch_send_deadline"] = "1s"
data["remote_write"][0].pop("write_relabel_configs", None)
data.pop("alerting", None)
if "rule_files" in data:
    data["rule_files"] = [str((Path(source).parent / name).resolve()) for name in data["rule_files"]]
Path(target).write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
PY
}

_fleet_start() { # NAME COMMAND...
  local name=$1
  shift
  "$@" >"$LEG_SCRATCH/$name.log" 2>&1 &
  _fleet_pids+=("$!")
  _fleet_last=$!
}

_fleet_end() {
  local pid
  for pid in ${_fleet_pids[@]+"${_fleet_pids[@]}"}; do kill "$pid" 2>/dev/null || true; done
  for pid in ${_fleet_pids[@]+"${_fleet_pids[@]}"}; do wait "$pid" 2>/dev/null || true; done
}

_fleet_ready() { # NAME URL
  local try
  for ((try = 0; try < 150; try++)); do
    curl -fsS -o /dev/null "$2" 2>/dev/null && return 0
    sleep 0.2
  done
  tail -n 10 "$LEG_SCRATCH/$1.log" >&2
  die "$1 does not get ready"
}

_fleet_store() {
  _fleet_start store "$_victoria" "-storageDataPath=$LEG_SCRATCH/store" "-httpListenAddr=${_store#http://}" -retentionPeriod=1 \
    -search.latencyOffset=0s -loggerLevel=WARN
  _store_pid=$_fleet_last
  _fleet_ready store "$_store/health"
}

leg_run() {
  leg_venv
  leg_tool prometheus
  local prometheus=$TOOL_PATH
  leg_tool victoria-metrics
  _victoria=$TOOL_PATH
  leg_tool promtool
  "$TOOL_PATH" check config deploy/fleet/edge.yml
  "$TOOL_PATH" check config --agent deploy/fleet/agent.yml
  _fleet_pids=()
  leg_at_end _fleet_end
  local exporter reference agent begun
  _store="http://127.0.0.1:$(free_port)"
  exporter="127.0.0.1:$(free_port)" reference="127.0.0.1:$(free_port)" agent="127.0.0.1:$(free_port)"
  _fleet_start replay vllmeter replay tests/captures/vllm-0.26.0-h200-three-instances.vmrec --base-port "$(free_port)" \
    --start pressure-64 --write-config "$LEG_SCRATCH/vllmeter.yaml"
  local try
  for ((try = 0; try < 100; try++)); do
    [[ -s $LEG_SCRATCH/vllmeter.yaml ]] && break
    sleep 0.1
  done
  _fleet_start exporter vllmeter serve --config "$LEG_SCRATCH/vllmeter.yaml" --listen "$exporter"
  _fleet_ready exporter "http://$exporter/-/ready"
  printf '[{"targets": ["%s"]}]\n' "$exporter" >"$LEG_SCRATCH/exporters.json"
  _fleet_store
  _fleet_config deploy/fleet/edge.yml "$LEG_SCRATCH/edge.yml" edge
  _fleet_config deploy/fleet/agent.yml "$LEG_SCRATCH/agent.yml" agent
  _fleet_start edge "$prometheus" "--config.file=$LEG_SCRATCH/edge.yml" "--storage.tsdb.path=$LEG_SCRATCH/edge" \
    "--web.listen-address=$reference"
  _fleet_start agent "$prometheus" --agent "--config.file=$LEG_SCRATCH/agent.yml" "--storage.agent.path=$LEG_SCRATCH/agent" \
    "--web.listen-address=$agent"
  _fleet_ready edge "http://$reference/-/ready"
  _fleet_ready agent "http://$agent/-/ready"
  begun="$(date +%s)"
  say "half a minute with the store, a quarter without, then catching up ..."
  sleep 30
  kill "$_store_pid"
  wait "$_store_pid" || true
  sleep 15
  _fleet_store
  sleep 40

  say "the agent's samples, over the time in which the store was away:"
  python tests/deploy/fleet_checks.py gaps --store "$_store" --cluster agent --since "$begun" --interval 2
  say "the edge's:"
  python tests/deploy/fleet_checks.py gaps --store "$_store" --cluster edge --since "$begun" --interval 2
  curl -fsS "http://$agent/metrics" | grep -E '^prometheus_remote_storage_(bytes|samples|samples_dropped|samples_failed)_total'
  say "answers of the store against those of the Prometheus at the edge:"
  python tests/deploy/fleet_checks.py compare --reference "http://$reference" --store "$_store" --cluster edge
}
