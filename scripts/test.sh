#!/usr/bin/env bash
# Installs what is missing, builds the release preset and runs its tests, those on the CPU side by side.
# Usage: scripts/test.sh [ctest args]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh release
ctest --preset release --output-on-failure --parallel "$(nproc)" "$@"
