#!/usr/bin/env bash
# Usage: run.sh SOURCE BUILD [TESTS]. Builds the wheel of SOURCE with the library and programs of BUILD, installs it
# into a fresh virtual environment, and uses it there (test_package.py; TESTS: of its class Package (which is the default) or Timing).
# What pip needs for that, and pandas, is kept under BUILD/python_test. Exit code 77: not run.
set -euo pipefail
source=$1 build=$2 tests=${3:-Package}
folder=$build/python_test
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $1"; exit 77; }
export PIP_DISABLE_PIP_VERSION_CHECK=1

command -v python3 > /dev/null || skip "no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || skip "python3 is older than 3.9"
if ! [ -e "$folder/ready" ]; then
  rm -rf "$folder"
  python3 -m venv "$folder/tools" || skip "python3 -m venv failed"
  "$folder/tools/bin/python" -m pip install -q --no-compile 'scikit-build-core>=0.10' 'nanobind>=2.2' ||
    skip "pip cannot install scikit-build-core and nanobind"
  "$folder/tools/bin/python" -m pip install -q --no-compile --target "$folder/pandas" pandas ||
    skip "pip cannot install pandas"
  touch "$folder/ready"
fi
[ -e "$("$folder/tools/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
  skip "python3 has no headers (Debian: python3-dev)"

rm -rf "$folder/wheel" "$folder/venv"
PATH=$folder/tools/bin:$PATH "$folder/tools/bin/python" -m pip wheel -q --no-deps --no-build-isolation \
  --wheel-dir "$folder/wheel" --config-settings=cmake.define.ZEROPLAN_PREBUILT="$build" --config-settings=build-dir="$folder/module" "$source"
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --no-index --no-deps "$folder"/wheel/*.whl
cd "$folder"
ZEROPLAN_NO_DETECT=1 "$folder/venv/bin/python" "$here/test_package.py" --pandas "$folder/pandas" -v "$tests"
