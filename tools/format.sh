#!/usr/bin/env bash
# format.sh [--check]: format every tracked C++ file, or with --check change nothing and fail if one would change.
#
# Versions of clang-format differ in what they write, so only major version 14 (Debian 12) is used; with another, or none,
# it says so and exits 77, which ctest counts as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
wanted=14

skip() {
  echo "format: skipped: $*"
  exit 77
}
command -v clang-format >/dev/null || skip "clang-format is not installed"
found=$(clang-format --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
[ "$found" = "$wanted" ] || skip "clang-format is version $found, the tree is formatted with $wanted"
# safe.directory: the tree may belong to another user (a container, a mounted folder).
git_here() { git -c safe.directory="$PWD" "$@"; }
git_here rev-parse --git-dir >/dev/null 2>&1 || skip "not a git work tree"

mapfile -t files < <(comm -23 <(git_here ls-files -- '*.h' '*.cc' '*.cu' '*.cuh' | sort) <(git_here ls-files --deleted | sort))
[ "${#files[@]}" -gt 0 ] || { echo "format: git lists no C++ files" >&2; exit 1; }
if [ "${1:-}" = --check ]; then
  bad=()
  for file in "${files[@]}"; do
    clang-format "$file" | cmp -s - "$file" || bad+=("$file")
  done
  if [ "${#bad[@]}" -gt 0 ]; then
    echo "format: these files are not as .clang-format wants them; run \`make fmt\`:" >&2
    printf '  %s\n' "${bad[@]}" >&2
    exit 1
  fi
  echo "format: ${#files[@]} files are formatted"
else
  clang-format -i "${files[@]}"
  echo "format: formatted ${#files[@]} files"
fi
