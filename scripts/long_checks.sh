#!/usr/bin/env bash
# Runs what is too long for every change, and keeps each check's last result (when, of which commit, how it ended)
# in docs/long_checks.txt, to be committed. Usage: scripts/long_checks.sh [CHECK...]   (default: all)
#   clang      the clang preset, every warning an error, and clang-tidy over all sources   (scripts/tidy.sh)
#   asan tsan  all tests under AddressSanitizer and UBSan; under ThreadSanitizer
#   timing     tests that measure time, on a machine that does nothing else   (ctest --preset timing)
#   readers    what zeroplan writes and reads, compared with the Python packages that it is for; installs them (some GB)
#   deepspeed  the same with DeepSpeed and torchtitan   (scripts/deepspeed_test.sh)
#   install    installation in bare systems   (scripts/install_test.sh; as root)
#   questions  boundaries of docs/which-method.md, typed back
#   pages      commands and outputs that pages quote, the slow ones too
#   sentences  advice of plan for sixty random scenarios, read from its text and typed back   (SEED=N: other ones)
#   fuzz       each fuzzer for a minute   (scripts/fuzz.sh)
#   torture    all of benchmarks/torture, an hour
set -euo pipefail
cd "$(dirname "$0")/.."
record=docs/long_checks.txt
all=(clang asan tsan timing readers deepspeed install questions pages sentences fuzz torture)

with_sanitizer() { scripts/build.sh "$1" && ctest --preset "$1" --parallel "$(nproc)"; }

readers() {
  local venv=build/readers_venv
  [ -x $venv/bin/python ] || python3 -m venv $venv || return
  $venv/bin/python -m pip install --quiet tensorboard viztracer jsonschema tokenizers transformers jinja2 trl \
    accelerate peft pyarrow pyyaml torch --extra-index-url https://download.pytorch.org/whl/cpu ||
    { echo "zeroplan: pip cannot install what reads"; return 2; }
  scripts/build.sh release || return 1
  cmake --preset release -DZEROPLAN_READERS_PYTHON="$PWD/$venv/bin/python" \
    -DZEROPLAN_TOKENIZERS_PYTHON="$PWD/$venv/bin/python" -DZEROPLAN_TRANSFORMERS_PYTHON="$PWD/$venv/bin/python" > /dev/null &&
    ctest --preset release -R '^(reader_|(tokenizer|chat|record|jinja)_|transformers_|report_pages|notebook)'
}

run_check() {
  case $1 in
    clang) scripts/tidy.sh ;;
    asan | tsan) with_sanitizer "$1" ;;
    timing) scripts/build.sh release && ctest --preset timing ;;
    readers) readers ;;
    deepspeed) scripts/deepspeed_test.sh ;;
    install) scripts/install_test.sh ;;
    questions) scripts/build.sh release && build/release/tests/tests_cli --no-skip -tc="methods: the page*" ;;
    pages) scripts/build.sh release && build/release/tests/tests_cli --no-skip -tc="pages:*" ;;
    sentences) scripts/build.sh release zeroplan &&
      python3 -B tests/sentences/advice_sentences.py build/release/zeroplan --scenarios 60 --seed "${SEED:-1000}" ;;
    fuzz) scripts/fuzz.sh 60 ;;
    torture) scripts/build.sh release && benchmarks/torture/torture.py --full ;;
  esac
}

# A check, how it ended: its line in the file becomes this one.
note() {
  local commit
  commit=$(git rev-parse --short=10 HEAD)
  git diff --quiet HEAD -- . ":!$record" || commit="$commit, changed"
  [ -e $record ] || echo "# The last result of each check of scripts/long_checks.sh, which writes this." > $record
  sed -i "/^$1 /d" $record
  printf '%-10s %s  %s  %s\n' "$1" "$(date -u +%Y-%m-%d)" "$commit" "$2" >> $record
  LC_ALL=C sort -o $record $record
}

checks=("$@")
[ $# -gt 0 ] || checks=("${all[@]}")
for check in "${checks[@]}"; do
  [[ " ${all[*]} " = *" $check "* ]] || { echo "zeroplan: $check is none of ${all[*]}" >&2; exit 2; }
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=()
for check in "${checks[@]}"; do
  echo "zeroplan: $check" >&2
  begin=$SECONDS
  code=0
  (run_check "$check") > "$log" 2>&1 || code=$?
  took="after $(((SECONDS - begin + 59) / 60)) min"
  skipped=$(grep -c '(Skipped)$' "$log" || true)
  case $code in
    0) result="passed $took$([ "$skipped" -eq 0 ] || echo ", but for $skipped tests that this machine cannot run")" ;;
    2) result="not run: $(grep '^zeroplan: ' "$log" | tail -n 1 | cut -c 11-)" ;;
    *) result="FAILED $took"; cp "$log" "build/long_check_$check.log"; tail -n 40 "$log" >&2 ;;
  esac
  [ $code -eq 0 ] || failed+=("$check")
  note "$check" "$result"
  echo "zeroplan: $check: $result" >&2
done
[ ${#failed[@]} -eq 0 ] || { echo "zeroplan: not passed: ${failed[*]}" >&2; exit 1; }
