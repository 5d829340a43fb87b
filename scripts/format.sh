#!/usr/bin/env bash
# Formats the C++ and CUDA sources that git knows with the one clang-format whose output counts; with
# --check it only says what differs (exit code 1). Usage: scripts/format.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/.."
version=18.1.8
folder=build/deps/clang-format-$version
clang_format=$folder/clang_format/data/bin/clang-format
if ! [ -x "$clang_format" ]; then
  echo "zeroplan: fetching clang-format $version" >&2
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps \
    --target "$folder" "clang-format==$version" >&2 || {
    echo "zeroplan: clang-format $version is not to be had (python3 -m pip install clang-format==$version):" >&2
    echo "the format was not checked" >&2
    exit 2
  }
fi
mapfile -t files < <(git ls-files '*.cc' '*.h' '*.cu' '*.cuh')
if [ "${1:-}" != --check ]; then
  exec "$clang_format" -i "${files[@]}"
fi
wrong=$("$clang_format" --dry-run "${files[@]}" 2>&1 | sed -n 's/^\([^ :]*\):.*-Wclang-format.*/\1/p' | sort -u)
[ -z "$wrong" ] && exit 0
printf 'zeroplan: not formatted (scripts/format.sh does it):\n%s\n' "$wrong" >&2
exit 1
