#!/usr/bin/env bash
# demo.sh BINARY: train the demo preset, measure it on held-out text, let it write. Each run gets a directory of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$1
run_dir=runs/demo-$(date +%Y%m%d-%H%M%S)

"$binary" train --config configs/demo.toml --run-dir "$run_dir"
"$binary" eval --run-dir "$run_dir"
"$binary" generate --run-dir "$run_dir" --prompt "ROMEO:" --prompt "KING HENRY:" --max-new-tokens 300 --temperature 0.7 --seed 1
