# shellcheck shell=bash
leg_title="Shell scripts: syntax and shellcheck"
leg_limit=180
leg_fast=yes

leg_run() {
  local -a scripts=()
  local file
  while IFS= read -r -d '' file; do
    case $file in
      *.sh) [[ ! -f $file ]] || scripts+=("$file") ;;
      *.py | *.lock | *.md | *.y*ml | *.txt | *.json) ;;
      *) if [[ -f $file && $(head -c 64 "$file" | head -n 1) =~ ^#!.*(bash|/sh) ]]; then scripts+=("$file"); fi ;;
    esac
  done < <(git ls-files -z --cached --others --exclude-standard -- scripts .ci deploy exporter | sort -z)
  for file in "${scripts[@]}"; do
    bash -n "$file"
  done
  printf '%d scripts parse\n' "${#scripts[@]}"
  leg_debian shellcheck=shellcheck
  # Paths of sourced files in the scripts are given from the project folder.
  shellcheck --external-sources --source-path=SCRIPTDIR --source-path=. "${scripts[@]}"
  printf 'shellcheck has nothing to say\n'
}
