#!/usr/bin/env bash
# setup.sh [PEER...]: programs to compare with, in a virtual environment of their own, .venv-peers (all, or those named).
#
# It sees the packages of .venv (torch 2.13.0 for CPUs, transformers), so every program computes with the same torch. A
# peer is one requirements-NAME.txt beside this script: exact versions, installed without their dependencies, so that none
# can bring another torch. A peer that does not install or import is named at the end, with the reason in
# .venv-peers/NAME.log; the others stay usable. Exit status: the number of absent peers.
set -uo pipefail
cd "$(dirname "$0")/../.."
venv=.venv-peers

[ -x .venv/bin/python ] || { echo "peers: .venv is missing: run tools/setup.sh (make setup) first" >&2; exit 100; }
[ -x $venv/bin/python ] || .venv/bin/python -m venv $venv || exit 100
.venv/bin/python -c 'import site; print(site.getsitepackages()[0])' \
  >"$($venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/moesaic.pth"
$venv/bin/python -c 'import torch; assert torch.__version__.split("+")[0] == "2.13.0", torch.__version__' ||
  { echo "peers: torch 2.13.0 of .venv is not seen from $venv" >&2; exit 100; }

$venv/bin/python -m pip install --disable-pip-version-check --no-input -q wheel==0.48.0 || exit 100  # DeepSpeed comes as source

if [ $# -eq 0 ]; then
  for file in bench/peers/requirements-*.txt; do
    name=${file##*/requirements-}
    set -- "$@" "${name%.txt}"
  done
fi
absent=0
for peer in "$@"; do
  file=bench/peers/requirements-$peer.txt
  [ -f "$file" ] || { echo "peers: $peer is unknown: there is no $file" >&2; absent=$((absent + 1)); continue; }
  # DeepSpeed builds kernels at installation unless told not to.
  if DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $venv/bin/python -m pip install --disable-pip-version-check --no-input --no-deps \
    --no-build-isolation -r "$file" >"$venv/$peer.log" 2>&1 &&
    DS_ACCELERATOR=cpu $venv/bin/python -c "import $peer; print('$peer imports')" >>"$venv/$peer.log" 2>&1; then
    echo "peers: $(grep -i "^$peer==" "$file") is installed"
  else
    echo "peers: $peer is ABSENT: $(tail -n 1 "$venv/$peer.log") (all of it in $venv/$peer.log)" >&2
    absent=$((absent + 1))
  fi
done
exit $absent
