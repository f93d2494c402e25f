# shellcheck shell=bash
# What promtool has to say about our configurations, rules and rule tests.
#
# Source after say.sh.

# promtool_all PROMTOOL : checks every file; prints one line each; returns 1 when any is wrong.
promtool_all() {
  local promtool=$1 file bad=0 tests=0 rules=0 major
  local -a rule_files=()
  major="$("$promtool" --version 2>&1 | sed -n 's/^promtool, version \([0-9]*\)\..*/\1/p')"
  "$promtool" --version 2>&1 | head -n 1

  while IFS= read -r file; do
    rule_files+=("$file")
  done < <(find prometheus/rules alerts -name '*.rules.yaml' -o -name '*.alerts.yaml' | sort)
  if ((${#rule_files[@]} > 0)); then
    "$promtool" check rules --lint=all --lint-fatal "${rule_files[@]}" || bad=1
    rules=${#rule_files[@]}
  fi

  # What only Prometheus 3 knows stands in files with a 3 in their name.
  while IFS= read -r file; do
    if [[ ${file##*/} == *prometheus-3* || ${file##*/} == *.v3.* ]] && [[ $major != 3 ]]; then
      printf 'left out, for Prometheus 3 only: %s\n' "$file"
      continue
    fi
    "$promtool" check config --syntax-only "$file" || bad=1
  done < <(find prometheus -maxdepth 1 -name 'prometheus*.y*ml' | sort)

  # Two at a time; the output of each stays together.
  tests="$(_promtool_tests | wc -l)"
  # shellcheck disable=SC2016
  _promtool_tests | xargs -r -P 2 -n 1 bash -c \
    'said="$("$0" test rules "$1" 2>&1)"; code=$?; printf "%s\n" "$said"; exit "$code"' "$promtool" || bad=1
  printf '%d rule files, %d rule test files\n' "$rules" "$tests"
  return "$bad"
}

_promtool_tests() { find prometheus alerts tests -name '*.promtest.yaml' | sort; }
