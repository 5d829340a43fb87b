#!/usr/bin/env bash
# Builds with clang (every warning an error, no precompiled headers: what a file uses it must include)
# and runs clang-tidy's checks of .clang-tidy over the sources, or over those that are named. Too slow for
# CI. Usage: scripts/tidy.sh [FILE...]
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in clang++ clang-tidy; do
  command -v $tool > /dev/null || { echo "zeroplan: no $tool here: apt-get install clang clang-tidy" >&2; exit 2; }
done
cmake --preset clang > /dev/null
export NINJA_STATUS="${NINJA_STATUS:-[%f/%t %p %es] }"
if [ $# -eq 0 ]; then
  cmake --build --preset clang
  mapfile -t files < <(git ls-files 'core/*.cc' 'hwprofiles/*.cc' 'cost_models/*.cc' 'planner/*.cc' \
    'executor/*.cc' 'cli/*.cc' 'library/*.cc' | grep -v /cuda/)
else
  files=("$@")
fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy -p build/clang --quiet --warnings-as-errors='*'
