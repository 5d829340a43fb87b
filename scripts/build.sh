#!/usr/bin/env bash
# Installs what is missing and builds a preset (default: release). Usage: scripts/build.sh [PRESET [TARGET...]]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
preset=${1:-release}
shift || true
cmake --preset "$preset" > /dev/null
if [ $# -gt 0 ]; then cmake --build --preset "$preset" --target "$@"; else cmake --build --preset "$preset"; fi
