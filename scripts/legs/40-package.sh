# shellcheck shell=bash
leg_title="Wheel and sdist: built, installed into a clean environment, command and assets work from there"
leg_limit=400

leg_run() {
  leg_venv
  local dist="$LEG_SCRATCH/dist" clean="$LEG_SCRATCH/clean" out="$LEG_SCRATCH/assets" file count
  local python="$clean/bin/python"
  local -a built=()
  # The wheel is made from the sdist, so the sdist has all that it needs.
  retry 3 python -m build --outdir "$dist" . >"$LEG_SCRATCH/build.log" 2>&1 \
    || { tail -n 30 "$LEG_SCRATCH/build.log"; die "the package does not build"; }
  built=("$dist"/*.whl)
  [[ ${#built[@]} == 1 && -f ${built[0]} && -n $(find "$dist" -name '*.tar.gz') ]] || die "expected one wheel and one sdist in: $(ls "$dist")"
  (cd "$dist" && du -h -- *)

  python -m venv "$clean"
  retry 3 "$python" -m pip --disable-pip-version-check install -q -c scripts/constraints.txt "${built[0]}"
  "$python" -m pip check
  # From another folder and without the project's settings, so that nothing comes from the checkout.
  cd "$LEG_SCRATCH"
  unset PYTHONPATH VIRTUAL_ENV
  file="$("$python" -c 'import vllmeter; print(vllmeter.__file__)')"
  [[ $file == "$clean"/* ]] || die "vllmeter was imported from $file, not from the clean environment"
  "$clean/bin/vllmeter" --version
  "$clean/bin/vllmeter" --help >/dev/null
  "$clean/bin/vllmeter" assets export "$out"
  # Every rule, alert and dashboard of the checkout, and each byte of them.
  count=0
  while IFS= read -r -d '' file; do
    count=$((count + 1))
    find "$out" -type f -name "${file##*/}" -print0 | xargs -0 -r -n 1 cmp -s "$VLLMETER_ROOT/$file" \
      || die "assets export lacks $file, or wrote another version of it"
    [[ -n $(find "$out" -type f -name "${file##*/}") ]] || die "assets export lacks $file"
  done < <(cd "$VLLMETER_ROOT" && find prometheus/rules alerts grafana/dashboards -type f \( -name '*.rules.yaml' -o -name '*.alerts.yaml' -o -name '*.json' \) -print0)
  ((count > 0)) || die "the checkout has neither rules nor dashboards"
  printf '%d rule, alert and dashboard files come out of the installed wheel unchanged\n' "$count"
}
