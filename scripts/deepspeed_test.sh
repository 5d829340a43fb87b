#!/usr/bin/env bash
# Loads what zeroplan writes with DeepSpeed, transformers, accelerate and torchtitan themselves; installs them
# (some GB) in a virtual environment under the build folder first. Usage: scripts/deepspeed_test.sh [BUILD_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
writers=(write_deepspeed_configs write_formats)
if ! [ -e "$build/CMakeCache.txt" ]; then scripts/build.sh release "${writers[@]}"; fi
cmake --build "$build" --target "${writers[@]}"
writer() { find "$build" -name "$1" -type f; }
run() { tests/deepspeed/run.sh "$build/deepspeed" yes "$@"; }
run load_with_deepspeed.py "$(writer write_deepspeed_configs)" 60
run load_formats.py "$(writer write_formats)"
