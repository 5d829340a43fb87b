#!/usr/bin/env bash
# Usage: run.sh SOURCE BUILD [CHROMIUM] [--write] [--shots FOLDER]. Runs examples/notebook with the wheel that
# tests/python/run.sh has made of BUILD, and looks at the notebook in a browser (open_notebook.py). What pip
# needs for that is kept under BUILD/python_test. Exit code 77: not run.
set -euo pipefail
source=$1 build=$2
shift 2
folder=$build/python_test
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "skipped: $1"; exit 77; }
export PIP_DISABLE_PIP_VERSION_CHECK=1

compgen -G "$folder/wheels/zeroplan-*.whl" > /dev/null || skip "no wheel in $folder; tests/python/run.sh makes it"
if ! [ -e "$folder/notebook/ready" ]; then
  rm -rf "$folder/notebook"
  python3 -m venv "$folder/notebook" || skip "python3 -m venv failed"
  "$folder/notebook/bin/python" -m pip install -q --no-compile nbclient nbconvert ipykernel ||
    skip "pip cannot install nbclient, nbconvert and ipykernel"
  touch "$folder/notebook/ready"
fi
"$folder/notebook/bin/python" -m pip install -q --force-reinstall --no-index --no-deps "$folder"/wheels/zeroplan-*.whl
ZEROPLAN_NO_DETECT=1 "$folder/notebook/bin/python" -B "$here/open_notebook.py" "$source" "$@"
