# shellcheck shell=bash
leg_title="Every package of the lock files is pinned with hashes, and every file that is fetched has its hash"
leg_limit=300

leg_run() {
  leg_venv
  local lock folder
  for lock in exporter/requirements.lock exporter/build.lock; do
    # pip looks only at what this Python and platform need; here every entry counts.
    awk -v file="$lock" '
      { line = line $0 }
      /\\$/ { sub(/\\$/, "", line); next }
      line ~ /^ *(#|$)/ { line = ""; next }
      { entries++ }
      line !~ /^[A-Za-z0-9._-]+==[^ ]+( ;.*)? +--hash=sha256:[0-9a-f]+( |$)/ { print file ": not pinned with a hash: " line; bad = 1 }
      { line = "" }
      END { if (!entries) { print file ": holds no package"; bad = 1 }
            if (!bad) print file ": " entries " packages, each with its hashes"; exit bad }' "$lock"
    folder="$LEG_SCRATCH/$(basename "$lock")"
    # Fails on any file whose hash is another.
    retry 3 python -m pip --disable-pip-version-check download -q --no-deps --require-hashes \
      --dest "$folder" --requirement "$lock"
    printf '%s: %d files fetched for this Python, as their hashes say\n' "$lock" "$(find "$folder" -type f | wc -l)"
  done
}
