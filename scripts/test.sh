#!/usr/bin/env bash
# Installs what is missing, builds the release preset and runs its tests, those on the CPU side by side: two more
# than there are processors, as many wait for disks and for each other.
# Usage: scripts/test.sh [ctest args]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh release
ctest --preset release --output-on-failure --parallel "$(($(nproc) + 2))" "$@"
