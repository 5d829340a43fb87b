#!/usr/bin/env bash
# Builds with clang (every warning an error, no precompiled headers: what a file uses it must include)
# and runs clang-tidy's checks of .clang-tidy over the sources; too slow for CI. Or runs the checks alone, over
# files that are named, or over those that differ from a commit: 4 s of processor time each, so of many such the
# first 100, and none where this machine has no clang-tidy or no such commit, which is said.
# Usage: scripts/tidy.sh [FILE... | --since COMMIT]
set -euo pipefail
cd "$(dirname "$0")/.."
most=100
say() { echo "zeroplan: $*" >&2; }
since=""
if [ "${1:-}" = --since ]; then since=$2; fi
for tool in clang++ clang-tidy; do
  command -v $tool > /dev/null && continue
  say "no $tool here: apt-get install clang clang-tidy"
  if [ -n "$since" ]; then say "clang-tidy was not run"; exit 0; fi
  exit 2
done
sources() { git ls-files -- 'core/*.cc' 'hwprofiles/*.cc' 'machine/*.cc' 'cost_models/*.cc' 'planner/*.cc' \
  'text/*.cc' 'reader/*.cc' 'executor/*.cc' 'cli/*.cc' 'library/*.cc' | grep -v /cuda/; }
if [ -n "$since" ]; then
  git rev-parse -q --verify "$since^{commit}" > /dev/null || { say "no commit $since here: clang-tidy was not run"; exit 0; }
  mapfile -t files < <(comm -12 <(sources | sort) <(git diff --name-only "$since" | sort))
  say "clang-tidy over ${#files[@]} files that differ from $since"
  if [ ${#files[@]} -gt $most ]; then
    say "(the first $most; scripts/tidy.sh takes all)"
    files=("${files[@]:0:$most}")
  fi
  [ ${#files[@]} -gt 0 ] || exit 0
else
  files=("$@")
fi
cmake --preset clang > /dev/null
export NINJA_STATUS="${NINJA_STATUS:-[%f/%t %p %es] }"
if [ ${#files[@]} -eq 0 ]; then
  cmake --build --preset clang
  mapfile -t files < <(sources)
fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy -p build/clang --quiet --warnings-as-errors='*'
