#!/usr/bin/env bash
# setup.sh [PACKAGES_FILE]: get what the build and the tests need. A second run takes well under a second.
#
#   1. Debian packages (PACKAGES_FILE, tools/packages.txt): installed when root, else named with the command that gets them.
#   2. .venv: Python 3.11 with requirements.txt and requirements-test.txt, and python/ importable in it.
#
# Two set-ups of one tree wait for each other. Details of a step go to .cache/setup.log.
set -euo pipefail

packages_file=$(realpath "${1:-$(dirname "$0")/packages.txt}")
cd "$(dirname "$0")/.."
requirements=(requirements.txt requirements-test.txt)
log=.cache/setup.log

say() { echo "set-up: $*"; }
fail() {
  echo "set-up: $*" >&2
  exit 1
}

# Runs a command with its output in the log; when it fails, shows the end of it.
logged() {
  echo "+ $*" >>"$log"
  if ! "$@" >>"$log" 2>&1 </dev/null; then
    echo "set-up: failed: $*" >&2
    echo "set-up: the end of $log:" >&2
    tail -n 25 "$log" >&2
    exit 1
  fi
}

missing_packages() {
  local wanted installed
  command -v dpkg-query >/dev/null ||
    fail "dpkg-query not found: set-up knows Debian only. Install the like of $packages_file by hand."
  wanted=$(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$packages_file" | awk '{print $1}' | sort -u)
  # dpkg-query exits 1 when it does not know a name: that is an answer, not a failure.
  installed=$(xargs dpkg-query -W -f '${db:Status-Status} ${Package}\n' <<<"$wanted" 2>/dev/null |
    awk '$1 == "installed" {print $2}' | sort -u) || true
  comm -23 <(echo "$wanted") <(echo "$installed") | xargs
}

install_packages() {
  local missing
  missing=$(missing_packages)
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "set-up: missing Debian packages: $missing" >&2
    echo "set-up: get them with:" >&2
    echo "  sudo apt-get update && sudo apt-get install --no-install-recommends -y $missing" >&2
    exit 1
  fi
  say "installing Debian packages: $missing"
  export DEBIAN_FRONTEND=noninteractive
  logged apt-get -o DPkg::Lock::Timeout=300 update
  # shellcheck disable=SC2086  # a list of names
  logged apt-get -o DPkg::Lock::Timeout=300 install --no-install-recommends -y $missing
}

is_python_3_11() { [ -x "$(command -v "$1")" ] && "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

# Debian's own first: the venv then outlives whatever else is on PATH.
find_python() {
  local candidate
  for candidate in /usr/bin/python3.11 python3.11 python3; do
    if is_python_3_11 "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  fail "no Python 3.11: looked for /usr/bin/python3.11, python3.11 and python3 (got: $(python3 --version 2>&1 || true))"
}

# Prints what .venv lacks of the requirements ("torch==2.13.0 (has 2.12.1)"), nothing when all is there.
unmet_requirements() {
  .venv/bin/python - "${requirements[@]}" <<'PYTHON'
import sys
from importlib.metadata import PackageNotFoundError, version

unmet = []
for path in sys.argv[1:]:
    for line in open(path):
        name, _, wanted = line.partition("#")[0].strip().partition("==")
        if not name:
            continue
        try:
            found = version(name)
        except PackageNotFoundError:
            found = "none"
        if found.partition("+")[0] != wanted:  # 2.13.0+cpu is a build of 2.13.0
            unmet.append(f"{name}=={wanted} (has {found})")
print(", ".join(unmet))
PYTHON
}

make_venv() {
  local stamp=.venv/.moesaic-requirements hash unmet
  hash=$(cat "${requirements[@]}" | sha256sum)
  if [ -L .venv ]; then
    # Somebody's shared environment: used as it is, never changed.
    is_python_3_11 .venv/bin/python || fail ".venv is a link to $(readlink .venv), which has no Python 3.11. Remove the link and run again."
    unmet=$(unmet_requirements)
    [ -z "$unmet" ] || fail ".venv is a link to $(readlink .venv), which lacks $unmet. Install that there, or remove the link and run again."
    return
  fi
  if is_python_3_11 .venv/bin/python; then
    # The stamp is written last, so an interrupted installation never counts as one.
    if [ "$(cat $stamp 2>/dev/null)" = "$hash" ]; then return; fi
  else
    local python
    python=$(find_python)
    if [ -e .venv ]; then
      say "replacing .venv, whose Python 3.11 does not run"
      rm -rf .venv
    fi
    say "making .venv with $python"
    logged "$python" -m venv .venv
  fi
  rm -f "$stamp"
  say "installing Python packages into .venv (torch is large: some minutes on a first run)"
  # One call, every version fixed: nothing that the tests need can bring another torch.
  logged .venv/bin/python -m pip install --disable-pip-version-check --no-input "${requirements[@]/#/--requirement=}"
  logged .venv/bin/python -c 'import torch; print(torch.__version__)'
  unmet=$(unmet_requirements)
  [ -z "$unmet" ] || fail ".venv lacks $unmet after installation: see $log"
  echo "$hash" >"$stamp"
  say "done"
}

# python -m moesaic.tokenize from anywhere. A path file needs no network and no build, and shows every edit.
make_importable() {
  [ -L .venv ] && return  # somebody's shared environment; PYTHONPATH=python does the same there
  local wanted=$PWD/python file=.venv/lib/python3.11/site-packages/moesaic.pth
  [ "$(cat "$file" 2>/dev/null)" = "$wanted" ] || echo "$wanted" >"$file"
}

mkdir -p .cache
exec 9>>.cache/setup.lock
flock --nonblock 9 || {
  say "waiting for another set-up of this tree"
  flock 9
}
: >"$log"
install_packages
make_venv
make_importable
