#!/usr/bin/env bash
# Installs what zeroplan builds with and this machine lacks: a tool that is on the PATH or a library
# that CMake finds stays as it is, wherever it came from. Packages come from apt (Debian 12, Ubuntu
# 24.04 and their kin); elsewhere it says what to install. The CUDA toolkit, cuDNN and NCCL are the
# machine's: with them the CUDA executor is built too. Usage: scripts/setup.sh [PRESET], for what that
# preset builds (default: all).
set -euo pipefail
cd "$(dirname "$0")/.."

needs=()
case ${1:-} in
  planner) needs=(-DZEROPLAN_EXECUTOR=OFF -DZEROPLAN_TESTS=OFF) ;;
  package) needs=(-DZEROPLAN_TESTS=OFF) ;;
esac

say() { echo "zeroplan: $*" >&2; }

# $1 at least $2, both dotted numbers.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

version_of() { "$@" --version 2> /dev/null | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1; }

# Prints the packages of the tools that are missing or too old.
missing_tools() {
  local compiler=${CXX:-c++} version
  version=$(version_of "$compiler" || true)
  if "$compiler" --version 2> /dev/null | grep -qi clang; then
    at_least "${version:-0}" 14 || echo g++
  else
    at_least "${version:-0}" 12 || echo g++
  fi
  version=$(version_of cmake || true)
  at_least "${version:-0}" 3.25 || echo cmake
  command -v ninja > /dev/null || echo ninja-build
}

# Prints the packages of the libraries that CMake does not find: those of which the probe says $1. REQUIRES:
# the tools are here.
libraries_that_are() {
  cmake -S scripts/probe -B "build/deps/probe${2:+_$2}" -G Ninja "${needs[@]}" 2> /dev/null | sed -n "s/^-- $1: //p"
}
missing_libraries() { libraries_that_are missing "$@"; }

install() {
  if ! command -v apt-get > /dev/null; then
    say "no apt here. Please install what is missing ($*; names are Debian's), then run this again:
  a C++20 compiler (gcc 12, clang 14 or newer), CMake 3.25, Ninja,
  fmt 9, nlohmann/json 3.10, CLI11 2.1, Eigen 3.4, doctest 2.4, Oniguruma 6.9, utf8proc 2.7,
  zlib 1.2, zstd 1.4, xxHash 0.8; for CPU ranks in several processes Gloo 0.5"
    exit 2
  fi
  local sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || { say "as root, please: apt-get install $*"; exit 2; }
    sudo=sudo
  fi
  say "installing $*"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@" > /dev/null
}

# The headers of cuDNN's frontend, where there is a CUDA compiler and cuDNN but no such headers.
cudnn_frontend() {
  local nvcc folder
  nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  [ -x "$nvcc" ] || return 0
  for folder in /usr/include /usr/local/include /usr/local/cuda/include \
    build/deps/cudnn_frontend_pkg/include; do
    [ -e "$folder/cudnn_frontend.h" ] && return 0
  done
  say "fetching the headers of nvidia-cudnn-frontend"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps \
    --target build/deps/cudnn_frontend_pkg nvidia-cudnn-frontend >&2 ||
    say "not to be had (python3 -m pip install nvidia-cudnn-frontend): attention on the GPU will be slow"
}

tools=$(missing_tools)
# shellcheck disable=SC2086  # a list of words
[ -z "$tools" ] || install $tools
tools=$(missing_tools)
if [ -n "$tools" ]; then
  say "too old or missing, and apt has no newer: ${tools//$'\n'/, }. Please install gcc 12, CMake 3.25 and"
  say "Ninja or newer, for example: python3 -m pip install cmake ninja; CXX names another compiler"
  exit 2
fi
libraries=$(missing_libraries "$@")
# shellcheck disable=SC2086
[ -z "$libraries" ] || install $libraries
libraries=$(missing_libraries "$@")
if [ -n "$libraries" ]; then
  say "CMake does not find ${libraries//$'\n'/, }, or finds an older one than dependencies.cmake asks for;"
  say "if they are installed elsewhere, name the folder in CMAKE_PREFIX_PATH"
  exit 2
fi
useful=$(libraries_that_are "of use" "$@")
if [ -n "$useful" ]; then
  # shellcheck disable=SC2086
  (install $useful) || say "without ${useful//$'\n'/, }: CPU ranks are threads of one process (docs/multi-gpu.md)"
fi
[ "${1:-}" = planner ] || cudnn_frontend
