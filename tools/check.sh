#!/usr/bin/env bash
# check.sh: everything that judges the source without running it. All checks run; the exit status is 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()
check() {
  local name=$1 status=0
  shift
  "$@" || status=$?
  [ "$status" -eq 0 ] || [ "$status" -eq 77 ] || failed+=("$name")  # 77: skipped, with its reason printed
}

mkdir -p .cache/cppcheck
check format tools/format.sh --check
check layering python3 tests/structure/layering.py
check scripts bash -n tools/*.sh bench/peers/*.sh .ci/run
check python .venv/bin/python -m compileall -q python tests bench tools
# Torch's headers are not followed (they take minutes); what cppcheck cannot see it does not judge.
check cppcheck cppcheck -q -j 2 --std=c++20 --language=c++ --enable=warning,performance,portability --inline-suppr \
  --suppressions-list=tools/cppcheck.suppressions --error-exitcode=1 --cppcheck-build-dir=.cache/cppcheck -I src src

if [ "${#failed[@]}" -gt 0 ]; then
  echo "check: failed: ${failed[*]}" >&2
  exit 1
fi
echo "check: all passed"
