# shellcheck shell=bash
leg_title="The HTTP interface does what its OpenAPI description says: schemathesis finds no crash and nothing undocumented"
leg_limit=300

SCHEMATHESIS=4.32.5

leg_run() {
  leg_venv
  local tools="$LEG_SCRATCH/tools" port url
  python -m venv "$tools"
  retry 3 "$tools/bin/pip" --disable-pip-version-check install -q "schemathesis==$SCHEMATHESIS"
  port="$(free_port)"
  url="http://127.0.0.1:$port"
  cat >"$LEG_SCRATCH/vllmeter.yaml" <<YAML
listen: 127.0.0.1:$port
nvml: {enabled: false}
servers: [{name: chat, url: 'http://127.0.0.1:9'}]
YAML
  PYTHONPATH="$PWD/exporter" python -m vllmeter serve --config "$LEG_SCRATCH/vllmeter.yaml" >"$LEG_SCRATCH/serve.log" 2>&1 &
  SERVED=$!
  leg_at_end stop_serving
  for _ in $(seq 100); do
    curl -fsS -o /dev/null "$url/-/healthy" 2>/dev/null && break
    sleep 0.2
  done
  # A stream never ends, and a recording lasts as many seconds as it was asked for: tests/web has both.
  "$tools/bin/schemathesis" run "$url/openapi.json" --no-color \
    --exclude-path /api/stream --exclude-path /api/recording \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
    --max-examples 30 --max-time 60 --rate-limit 100/s --continue-on-failure --generation-database none \
    | tee "$LEG_SCRATCH/schemathesis.log"
  kill -0 "$SERVED" || die "the exporter died"
  ! grep -q Traceback "$LEG_SCRATCH/serve.log" || { tail -n 40 "$LEG_SCRATCH/serve.log"; die "a fault in the exporter's log"; }
  kill -TERM "$SERVED"
  wait "$SERVED" || die "the exporter did not end with 0"
  SERVED=""
}

stop_serving() {
  [[ -z $SERVED ]] || kill -KILL "$SERVED" 2>/dev/null || true
}
