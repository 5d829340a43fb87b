#!/usr/bin/env bash
# Usage: with_package.sh FOLDER PACKAGE==VERSION SCRIPT [ARGUMENT...]. Runs a Python script in the virtual
# environment FOLDER/PACKAGE==VERSION, which has that package and PyYAML: put there if they are not
# (kubeflow-training takes 80 MB, skypilot 600). Exit code 77: they are not to be had.
set -euo pipefail
folder=$1/$2 package=$2
shift 2
skip() { echo "skipped: $1"; exit 77; }
if ! [ -e "$folder/ready" ]; then
  command -v python3 > /dev/null || skip "no python3"
  rm -rf "$folder"
  python3 -m venv "$folder" || skip "python3 -m venv failed"
  "$folder/bin/python" -m pip install -q "$package" PyYAML || skip "$package cannot be installed"
  touch "$folder/ready"
fi
"$folder/bin/python" -B "$@"
