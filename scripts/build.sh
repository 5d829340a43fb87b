#!/usr/bin/env bash
# Installs what is missing and builds a preset (default: release). With CI=true in the environment
# warnings are errors. Usage: scripts/build.sh [PRESET [TARGET...]]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
scripts/setup.sh "$preset"
shift || true
# Of what configuring says, what was found to build with.
werror=$([ "${CI:-}" = true ] && echo ON || echo OFF)
cmake --preset "$preset" -DZEROPLAN_WERROR="$werror" | sed -n 's/^-- \(zeroplan: \)/\1/p' >&2
# [targets done/all, share, time so far]
export NINJA_STATUS="${NINJA_STATUS:-[%f/%t %p %es] }"
if [ $# -gt 0 ]; then cmake --build --preset "$preset" --target "$@"; else cmake --build --preset "$preset"; fi
