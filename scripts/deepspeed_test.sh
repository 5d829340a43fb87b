#!/usr/bin/env bash
# Loads what zeroplan writes with DeepSpeed itself; installs torch and DeepSpeed (some GB) in a virtual
# environment under the build folder first. Usage: scripts/deepspeed_test.sh [BUILD_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
if ! [ -e "$build/CMakeCache.txt" ]; then scripts/build.sh release write_deepspeed_configs; fi
cmake --build "$build" --target write_deepspeed_configs
exec tests/deepspeed/run.sh "$build/deepspeed" "$(find "$build" -name write_deepspeed_configs -type f)" yes
