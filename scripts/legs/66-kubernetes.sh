# shellcheck shell=bash
leg_title="Kubernetes manifests: kustomize builds them, the API's and the operator's schemas accept them, promtool reads the rules"
leg_limit=600

leg_run() {
  leg_venv
  # The schemas come as npm packages.
  leg_debian node=nodejs npm=npm
  leg_tool promtool
  local promtool=$TOOL_PATH schemas part
  leg_tool kustomize
  export KUSTOMIZE=$TOOL_PATH
  leg_tool manifests
  local strict=$TOOL_PATH
  pytest -q tests/deploy/test_kubernetes.py

  # Kept between runs; made anew when the pins change.
  schemas="$(cache_folder)/schemas-$(hash_of tests/deploy/kubernetes/package.json tests/deploy/kubernetes/package-lock.json)"
  if [[ ! -d $schemas ]]; then
    mkdir -p "$schemas.new"
    cp tests/deploy/kubernetes/package*.json "$schemas.new/"
    retry 3 npm ci --prefix "$schemas.new" --silent --no-audit --no-fund --ignore-scripts
    rm -rf "$schemas"
    mv "$schemas.new" "$schemas"
  fi
  for part in base operator complete; do
    "$KUSTOMIZE" build "deploy/kubernetes/$part" >"$LEG_SCRATCH/$part.yaml"
    python - "$LEG_SCRATCH/$part.yaml" >"$LEG_SCRATCH/$part.json" <<'PY'
import json
import sys

import yaml

for document in yaml.safe_load_all(open(sys.argv[1], encoding="utf-8")):
    print(json.dumps(document))
PY
    say "$part: fields, then schemas"
    "$strict" <"$LEG_SCRATCH/$part.yaml"
    node tests/deploy/kubernetes/validate.mjs "$schemas" <"$LEG_SCRATCH/$part.json"
  done

  # The checks can fail: misspelled fields are found, and wrong types in both kinds of schema.
  sed 's/hostPID:/hostPid:/; s/podMetricsEndpoints:/podMetricsEndpoint:/' "$LEG_SCRATCH/complete.yaml" >"$LEG_SCRATCH/broken.yaml"
  if "$strict" <"$LEG_SCRATCH/broken.yaml" >"$LEG_SCRATCH/said" 2>&1; then
    die "misspelled fields are accepted"
  fi
  grep -q '2 wrong' "$LEG_SCRATCH/said" || { cat "$LEG_SCRATCH/said" >&2 && die "two fields were misspelled, others found"; }
  sed 's/"hostPID": true/"hostPID": "yes"/; s/"podMetricsEndpoints": \[/"podMetricsEndpoints": 3, "x": [/' "$LEG_SCRATCH/complete.json" >"$LEG_SCRATCH/broken.json"
  if node tests/deploy/kubernetes/validate.mjs "$schemas" <"$LEG_SCRATCH/broken.json" >"$LEG_SCRATCH/said" 2>&1; then
    die "the schemas accept a wrong DaemonSet and a wrong PodMonitor"
  fi
  grep -q '2 wrong' "$LEG_SCRATCH/said" || { cat "$LEG_SCRATCH/said" >&2 && die "two mistakes were made, others found"; }

  # Rules as Prometheus reads them.
  python - deploy/kubernetes/operator/prometheusrule.yaml "$LEG_SCRATCH/rules.yaml" <<'PY'
import sys

import yaml

groups = [g for d in yaml.safe_load_all(open(sys.argv[1], encoding="utf-8")) for g in d["spec"]["groups"]]
yaml.safe_dump({"groups": groups}, open(sys.argv[2], "w", encoding="utf-8"))
PY
  "$promtool" check rules "$LEG_SCRATCH/rules.yaml"
}
