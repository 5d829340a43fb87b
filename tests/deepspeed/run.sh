#!/usr/bin/env bash
# Usage: run.sh FOLDER WRITER INSTALL. Writes random configs with WRITER and loads them with DeepSpeed, in the
# virtual environment FOLDER/venv; INSTALL=yes makes it if it is missing. Exit code 77: not run.
set -euo pipefail
folder=$1 writer=$2 install=$3
version=0.19.6
python=$folder/venv/bin/python
here=$(cd "$(dirname "$0")" && pwd)

skip() { echo "skipped: $1"; exit 77; }

if ! [ -e "$folder/venv/ready" ]; then
  [ "$install" = yes ] || skip "no DeepSpeed in $folder/venv; scripts/deepspeed_test.sh installs it"
  command -v python3 > /dev/null || skip "no python3"
  rm -rf "$folder/venv"
  python3 -m venv "$folder/venv" || skip "python3 -m venv failed"
  # DeepSpeed's setup imports what it finds, so it is built without isolation.
  "$python" -m pip install -q setuptools wheel torch numpy || skip "torch cannot be installed"
  "$python" -m pip install -q --no-build-isolation "deepspeed==$version" ||
    skip "deepspeed $version cannot be installed"
  touch "$folder/venv/ready"
fi
rm -rf "$folder/configs"
mkdir -p "$folder/configs"
"$writer" "$folder/configs" 60
DS_ACCELERATOR=cpu "$python" "$here/load_with_deepspeed.py" "$folder/configs"
