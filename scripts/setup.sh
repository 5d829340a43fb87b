#!/usr/bin/env bash
# Installs what zeroplan builds with. Debian 12, Ubuntu 24.04 and their kin; elsewhere it says what to
# install. Does nothing where all of it is there. The CUDA toolkit, cuDNN and NCCL are the machine's: with
# them the CUDA executor is built too.
set -euo pipefail
cd "$(dirname "$0")/.."

# The headers of cuDNN's frontend, where there is a CUDA compiler and cuDNN but no such headers.
cudnn_frontend() {
  local nvcc folder
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  [ -x "$nvcc" ] || return 0
  for folder in /usr/include /usr/local/include /usr/local/cuda/include build/deps/cudnn_frontend_pkg/include; do
    [ -e "$folder/cudnn_frontend.h" ] && return 0
  done
  echo "zeroplan: fetching the headers of nvidia-cudnn-frontend" >&2
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps \
    --target build/deps/cudnn_frontend_pkg nvidia-cudnn-frontend >&2 ||
    echo "zeroplan: not to be had (python3 -m pip install nvidia-cudnn-frontend): attention on the GPU will be slow" >&2
}
cudnn_frontend

packages=(g++ cmake ninja-build libfmt-dev nlohmann-json3-dev libcli11-dev libeigen3-dev doctest-dev)

missing=()
if command -v dpkg-query > /dev/null; then
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2> /dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && exit 0
fi

if ! command -v apt-get > /dev/null; then
  if command -v cmake > /dev/null && command -v ninja > /dev/null && command -v c++ > /dev/null; then
    echo "zeroplan: no apt here; assuming the libraries are installed (CMake says which are not)" >&2
    exit 0
  fi
  cat >&2 << 'LIST'
zeroplan: no apt here. Please install, then run this again:
  a C++20 compiler (gcc 12 or newer), CMake 3.25, Ninja,
  fmt 9, nlohmann/json 3.10, CLI11 2.1, Eigen 3.4, doctest 2.4
LIST
  exit 2
fi

sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null || { echo "zeroplan: as root, please: apt-get install ${missing[*]}" >&2; exit 2; }
  sudo=sudo
fi
echo "zeroplan: installing ${missing[*]}" >&2
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
