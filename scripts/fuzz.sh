#!/usr/bin/env bash
# Fuzzes the readers of foreign text with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, each
# for SECONDS (default 300). Needs clang++ with its runtime (Debian: clang libclang-rt-14-dev). A finding is
# left as build/fuzz/NAME/crash-*; add it to tests/fuzz/corpus/NAME once fixed. Usage: scripts/fuzz.sh [SECONDS]
# FUZZERS="plan frames" are those that run (default: all). RUNS=N ends each after N inputs, whatever that takes.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-300}
limit="-max_total_time=$seconds"
[ -z "${RUNS:-}" ] || limit="-runs=$RUNS"
command -v clang++ > /dev/null || { echo "zeroplan: no clang++ here: apt-get install clang libclang-rt-14-dev" >&2; exit 2; }
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DZEROPLAN_UNITY=ON -DZEROPLAN_CUDA=OFF \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='-O1 -g1' -DZEROPLAN_FUZZ=ON \
  -DZEROPLAN_SANITIZE=fuzzer-no-link,address,undefined -DZEROPLAN_BENCHMARKS=OFF > /dev/null
fuzzers=${FUZZERS:-config model profile weights plan metrics run_log tokens checkpoint frames environment tokenizer chat records folder adapter tables}
# shellcheck disable=SC2086
cmake --build build/fuzz --target $(printf 'fuzz_%s ' $fuzzers)
for name in $fuzzers; do
  out=build/fuzz/$name
  mkdir -p "$out/corpus"
  echo "zeroplan: fuzzing $name, $limit" >&2
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 build/fuzz/tests/fuzz/fuzz_$name "$out/corpus" \
    "tests/fuzz/corpus/$name" -artifact_prefix="$out/" "$limit" -timeout=5 \
    -malloc_limit_mb=1024 -max_len=16384 -dict=tests/fuzz/json.dict -print_final_stats=1 -verbosity=0
done
