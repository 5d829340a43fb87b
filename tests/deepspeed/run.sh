#!/usr/bin/env bash
# Usage: run.sh FOLDER INSTALL LOADER WRITER [ARGUMENT...]. Lets WRITER write into a folder, ARGUMENTs behind
# its name, and LOADER, a script beside this one, load that with the packages themselves, in the virtual
# environment FOLDER/venv; INSTALL=yes puts into it what is missing. Exit code 77: not run.
set -euo pipefail
folder=$1 install=$2 loader=$3 writer=$4
shift 4
python=$folder/venv/bin/python
here=$(cd "$(dirname "$0")" && pwd)

skip() { echo "skipped: $1"; exit 77; }
pip_install() { "$python" -m pip install -q "$@" || skip "$* cannot be installed"; }

if ! [ -e "$folder/venv/ready" ]; then
  [ "$install" = yes ] || skip "no DeepSpeed in $folder/venv; scripts/deepspeed_test.sh installs it"
  command -v python3 > /dev/null || skip "no python3"
  rm -rf "$folder/venv"
  python3 -m venv "$folder/venv" || skip "python3 -m venv failed"
  # DeepSpeed's setup imports what it finds, so it is built without isolation.
  pip_install setuptools wheel torch numpy
  pip_install --no-build-isolation deepspeed==0.19.6
  touch "$folder/venv/ready"
fi
if [ "$loader" = load_formats.py ] && ! [ -e "$folder/venv/ready-formats" ]; then
  [ "$install" = yes ] ||
    skip "no transformers, accelerate and torchtitan in $folder/venv; scripts/deepspeed_test.sh installs them"
  pip_install transformers==5.23.0 accelerate==1.15.0 torchtitan==0.2.2
  touch "$folder/venv/ready-formats"
fi
if [ "$loader" = load_formats.py ] && ! [ -e "$folder/venv/ready-float8" ]; then
  [ "$install" = yes ] || skip "no torchao in $folder/venv; scripts/deepspeed_test.sh installs it"
  pip_install torchao==0.18.0
  touch "$folder/venv/ready-float8"
fi
if [ "$loader" = load_formats.py ] && ! [ -e "$folder/venv/ready-adapters" ]; then
  [ "$install" = yes ] ||
    skip "no PEFT, bitsandbytes and TRL in $folder/venv; scripts/deepspeed_test.sh installs them"
  pip_install peft==0.21.2 bitsandbytes==0.50.2 trl==1.16.0 liger-kernel==0.8.5
  touch "$folder/venv/ready-adapters"
fi
out=$folder/${loader%.py}
rm -rf "$out"
mkdir -p "$out"
"$writer" "$out" "$@"
DS_ACCELERATOR=cpu "$python" "$here/$loader" "$out"
