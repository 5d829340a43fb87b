#!/usr/bin/env bash
# Usage: with_kubeflow.sh FOLDER SCRIPT [ARGUMENT...]. Runs a Python script in the virtual environment
# FOLDER/venv, which has kubeflow-training and PyYAML: put there if they are not (80 MB). Exit code 77: they
# are not to be had.
set -euo pipefail
folder=$1
shift
skip() { echo "skipped: $1"; exit 77; }
if ! [ -e "$folder/venv/ready" ]; then
  command -v python3 > /dev/null || skip "no python3"
  rm -rf "$folder/venv"
  python3 -m venv "$folder/venv" || skip "python3 -m venv failed"
  "$folder/venv/bin/python" -m pip install -q kubeflow-training==1.9.4 PyYAML ||
    skip "kubeflow-training cannot be installed"
  touch "$folder/venv/ready"
fi
"$folder/venv/bin/python" -B "$@"
