#!/usr/bin/env bash
# Usage: run.sh SOURCE BUILD [TESTS]. Makes the wheels of BUILD, installs them into a fresh virtual environment as
# people do, and uses them there: the planner alone first, then the module (test_package.py; TESTS: of its class
# Package, which is the default, or Timing), then the command line's tests over the installed programs, and
# uninstalls all of it. What pip needs for that, and pandas, is kept under BUILD/python_test. Exit code 77: not run.
set -euo pipefail
source=$1 build=$2 tests=${3:-Package}
folder=$build/python_test
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $1"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
export PIP_DISABLE_PIP_VERSION_CHECK=1

command -v python3 > /dev/null || skip "no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || skip "python3 is older than 3.9"
[ -e "$build/python/_core.abi3.so" ] || skip "the build has no module (Debian: python3-dev)"
if ! [ -e "$folder/ready" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  python3 -m venv "$folder/probe" || skip "python3 -m venv failed"
  "$folder/probe/bin/python" -m pip install -q --no-compile --target "$folder/pandas" pandas ||
    skip "pip cannot install pandas"
  touch "$folder/ready"
fi

"$source/scripts/release.sh" --tools || skip "pip cannot install what makes wheels"
"$source/scripts/release.sh" --build "$build" --out "$folder"
rm -rf "$folder/venv"
python3 -m venv "$folder/venv"
find "$folder/venv" | sort > "$folder/before"
bin=$folder/venv/bin
install() { "$bin/python" -m pip install -q --no-index --no-deps --no-compile "$@"; }
cd "$folder"
export ZEROPLAN_NO_DETECT=1

# The planner alone.
install "$folder"/wheels/zeroplan-*.whl
"$bin/zeroplan" plan qwen2.5-7b --hw 4090 --method lora > answer
grep -q '^Chosen: stage' answer || fail "plan: $(cat answer)"
"$bin/zeroplan" plan "$source/examples/byte_gpt/config.json" --hw 4090 --data "$source/README.md" > answer 2>&1 || fail "plan --data: $(cat answer)"
"$bin/zeroplan" --version > answer
grep -q '^executor  not here' answer || fail "--version: $(cat answer)"
"$bin/zeroplan" completion bash > answer
grep -q -- --offload-optimizer answer || fail "completion bash: $(head -n 3 answer)"
! "$bin/zeroplan" train --model gpt2 --data "$source/README.md" 2> refused || fail "train without the executor"
grep -q "pip install 'zeroplan\[train\]'\|zeroplan_executor_program" refused || fail "train: $(cat refused)"

# Both.
install "$folder"/wheels/zeroplan_train-*.whl
"$bin/python" "$here/test_package.py" --pandas "$folder/pandas" -v "$tests"
[ "$tests" = Package ] || exit 0
"$bin/zeroplan" man train > answer
grep -q '^.TH ZEROPLAN' answer || fail "man train: $(head -n 3 answer)"
ZEROPLAN_TESTED_PROGRAMS=$bin "$build/tests/tests_cli" -tse=timing \
  -sf='*/tests/cli/usage_test.cc,*/tests/cli/data_test.cc,*/tests/cli/doctor_test.cc,*/tests/cli/generate_test.cc,*/tests/cli/train_test.cc'

"$bin/python" -m pip uninstall -q -y zeroplan zeroplan-train
find "$folder/venv" | sort > "$folder/after"
left=$(diff "$folder/before" "$folder/after" | grep '^[<>]' | grep -v __pycache__ || true)
[ -z "$left" ] || fail "uninstalling leaves $left"
echo "the installed programs pass"
