#!/usr/bin/env bash
# Usage: run.sh BUILD CMAKE CXX. Installs the library of BUILD somewhere, moves it elsewhere, and there
# builds and runs a project that finds it. Then looks at what the library lets others see and needs.
set -euo pipefail
build=$1 cmake=$2 cxx=$3
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "failed: $*" >&2; exit 1; }

"$cmake" --install "$build" --component library --prefix "$folder/first" > /dev/null
mv "$folder/first" "$folder/installed"  # nothing may remember the first place
mkdir "$folder/source"
cp "$here/CMakeLists.txt" "$here/main.cc" "$folder/source"
"$cmake" -S "$folder/source" -B "$folder/build" -DCMAKE_PREFIX_PATH="$folder/installed" \
  -DCMAKE_CXX_COMPILER="$cxx" > /dev/null
"$cmake" --build "$folder/build" > /dev/null
said=$("$folder/build/consumer")
echo "$said"
grep -q '^zeroplan [0-9.]*: stage [0-3], [0-9]* bytes a GPU' <<< "$said" || fail "no plan"
grep -q "refused with 2: --gpus: 0 is not allowed" <<< "$said" || fail "no refusal"

library=$(find "$folder/installed" -name 'libzeroplan.so.1')
# Only namespace v1, and of the standard library what every C++ library shows.
shown=$(nm -DC --defined-only "$library")
grep -q 'zeroplan::v1::MakePlan' <<< "$shown" || fail "the library shows no MakePlan"
others=$(grep -v 'zeroplan::v1::' <<< "$shown" | grep -v ' [VWu] .*\(std\|__gnu_cxx\)::' || true)
others+=$(grep 'fmt::\|nlohmann::\|CLI::' <<< "$shown" || true)
[ -z "$others" ] || fail "the library shows $(head -n 3 <<< "$others")"
# No CUDA, no executor: what a planner needs.
needs=$(objdump -p "$library" | awk '$1 == "NEEDED" { print $2 }')
! grep -qi 'cuda\|nccl\|cublas\|cudnn\|nvidia' <<< "$needs" || fail "the library needs $needs"
# The header stands alone.
echo '#include <zeroplan/zeroplan.h>' > "$folder/alone.cc"
"$cxx" -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
  -I"$folder/installed/include" "$folder/alone.cc"
