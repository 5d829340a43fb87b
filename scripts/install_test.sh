#!/usr/bin/env bash
# Installs zeroplan in a bare system and uses it there as somebody would who has nothing else: plans, trains on the
# CPU, reads manual pages, completes in bash, zsh and fish, removes it again. With --release what
# scripts/release.sh made, by pip, as an archive and as a package, without a compiler; else from source (with
# setup.sh, cmake --install, and as a Python package by pip), and in another such system from the .deb that this makes.
# Needs root and, to make a bare system, mmdebstrap and that distribution's archive.
# Usage: scripts/install_test.sh [--release FOLDER | --deb FILE] [bookworm|jammy|noble|ROOT]...
#   bookworm, jammy, noble  Debian 12, Ubuntu 22.04 and 24.04 (default: all three with --release; else the first and
#                    the last); the script names one that it cannot fetch, with why, and leaves it out
#   ROOT             a bare system: a folder, or a tar file (of a container image: docker export)
#   --release FOLDER tests what that folder holds, builds nothing
#   --deb FILE       tests this package alone, builds nothing
# Environment: JOBS (compilers at once), KEEP=1 (leaves the roots), WORK (folder for them, some GB)
set -euo pipefail
cd "$(dirname "$0")/.."
source_dir=$PWD
work=${WORK:-$(mktemp -d "${TMPDIR:-/tmp}/zeroplan_install_XXXXXX")}
jobs=${JOBS:-$(nproc)}
deb=""
dist=""
systems=()
while [ $# -gt 0 ]; do
  case $1 in
    --deb) deb=$(realpath "$2"); shift 2 ;;
    --release) dist=$(realpath "$2"); shift 2 ;;
    -*) echo "zeroplan: $1 is not an option of scripts/install_test.sh (its first lines say which are)" >&2; exit 2 ;;
    *) systems+=("$1"); shift ;;
  esac
done
if [ ${#systems[@]} -eq 0 ]; then
  systems=(bookworm noble)
  [ -z "$dist" ] || systems=(bookworm jammy noble)
fi

say() { printf '\nzeroplan: %s\n' "$*" >&2; }
fail() { say "FAILED: $*"; exit 1; }

[ "$(id -u)" -eq 0 ] || { say "this makes and enters other systems, which only root can do"; exit 2; }

mounted=()
release() {
  local place
  for place in "${mounted[@]}"; do umount "$place" 2> /dev/null || umount -l "$place"; done
  mounted=()
}
clean_up() {
  release
  if [ -z "${KEEP:-}" ]; then rm -rf --one-file-system "$work"; else say "left: $work"; fi
}
trap clean_up EXIT
mkdir -p "$work"

# Ubuntu's archive is trusted by this key alone: "Ubuntu Archive Automatic Signing Key (2018)". Debian 12 has
# no package of it, so it comes from that archive itself, and has to be the key that it is known to be.
readonly ubuntu_key=F6ECB3762474EDA9D21B7022871920D1991BC93C
ubuntu_keyring() {
  local folder=$work/keyring
  keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  [ -e "$keyring" ] && return 0
  keyring=$work/ubuntu.gpg
  [ -e "$keyring" ] && return 0
  command -v gpg > /dev/null || { reason="there is no gpg to check its key with (apt-get install gpg)"; return 1; }
  if ! mmdebstrap --quiet --variant=extract --include=ubuntu-keyring \
    --aptopt='Acquire::AllowInsecureRepositories "true"' --aptopt='APT::Get::AllowUnauthenticated "true"' \
    noble "$folder" > "$work/keyring.log" 2>&1; then
    reason="its archive cannot be reached from here ($(grep -m 1 '^E: ' "$work/keyring.log" || true))"
    return 1
  fi
  mkdir -m 700 "$work/gnupg"
  gpg --quiet --homedir "$work/gnupg" --import "$folder"/usr/share/keyrings/ubuntu-archive-keyring.gpg 2> /dev/null
  gpg --quiet --homedir "$work/gnupg" --export "$ubuntu_key" > "$keyring"
  if [ ! -s "$keyring" ]; then
    rm "$keyring"
    reason="its archive's package ubuntu-keyring does not hold the key $ubuntu_key"
    return 1
  fi
}

# The tar file of the bare system $1 in $bare; else 1, and why in $reason.
make_bare() {
  bare=$work/$(basename "$1").tar
  reason=""
  [ -e "$bare" ] && return 0
  local options=()
  case $1 in
    bookworm) ;;
    jammy | noble) options=("--components=main,universe") ;;
    *)
      [ -e "$1" ] || { say "$1: neither bookworm, jammy, noble nor a folder or tar file"; exit 2; }
      if [ -d "$1" ]; then tar -C "$1" --one-file-system -cf "$bare" .; else bare=$(realpath "$1"); fi
      return 0
      ;;
  esac
  command -v mmdebstrap > /dev/null || { say "there is no mmdebstrap: apt-get install mmdebstrap"; exit 2; }
  if [ "$1" != bookworm ]; then
    ubuntu_keyring || return 1
    options+=(--keyring="$keyring")
  fi
  say "making a bare $1"
  if ! mmdebstrap --quiet --variant=apt --format=tar --aptopt='Acquire::Retries "3"' "${options[@]}" "$1" "$bare.part" \
    > "$work/bare.log" 2>&1; then
    cat "$work/bare.log" >&2
    reason="it could not be made ($(grep -m 1 '^E: ' "$work/bare.log" || true))"
    return 1
  fi
  mv "$bare.part" "$bare"
}

# A fresh system of the tar file $bare in $root, with what programs expect of a running one.
enter_fresh() {
  root=$work/root
  release
  rm -rf --one-file-system "$root"
  mkdir -p "$root"
  tar -C "$root" --exclude='./dev/*' -xf "$bare"
  mount -t proc proc "$root/proc" && mounted+=("$root/proc")
  mount --rbind /dev "$root/dev" && mount --make-rslave "$root/dev" && mounted=("$root/dev" "${mounted[@]}")
  cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2> /dev/null || true
  printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"  # no services
  chmod +x "$root/usr/sbin/policy-rc.d"
}

inside() {
  chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    LC_ALL=C.UTF-8 TERM=dumb DEBIAN_FRONTEND=noninteractive CMAKE_BUILD_PARALLEL_LEVEL="$jobs" "$@"
}
install_packages() { inside apt-get install -y -qq --no-install-recommends "$@" > "$work/apt.log" 2>&1 || {
  tail -20 "$work/apt.log" >&2; fail "apt-get install $*"; }; }

# What whoever installed zeroplan does next. $1: a name for messages; $2: its folder, where not on the PATH.
use_zeroplan() {
  say "$1: plan, train, generate"
  # shellcheck disable=SC2016  # the shell inside expands these
  inside sh -euc '
    PATH=${1:+$1:}$PATH
    rm -rf /tmp/use; mkdir /tmp/use; cd /tmp/use
    zeroplan --version
    zeroplan plan --model gpt2-10b --hw dgx-2 --gpus 1 --quick --plan-out plan.json > planned
    head -n 3 planned
    zeroplan explain plan.json > explained
    cat /usr/share/common-licenses/* > text.txt
    printf "%s" "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 32,
      \"n_layer\": 2, \"n_head\": 2}" > config.json
    zeroplan train --model config.json --data text.txt --stage 2 --gpus 2 --micro-batch 4 --steps 40 \
      --save run > trained 2>&1 || { cat trained; exit 1; }
    tail -n 6 trained
    zeroplan generate run --prompt "The " --tokens 20 > /dev/null
    zeroplan checkpoint verify run > /dev/null' sh "${2:-}" || fail "$1: plan or train"
}

# $1: a name for messages; the rest: where its manual pages, and completions of bash, zsh and fish lie.
read_and_complete() {
  local name=$1 man=$2 bash=$3 zsh=$4 fish=$5 said
  say "$name: manual pages, completions"
  inside sh -c 'MANWIDTH=80 man zeroplan-plan' | grep -q -- '--offload-optimizer none|cpu|nvme|all' ||
    fail "$name: man zeroplan-plan"
  # Debian's /usr/local/man is a link to share/man.
  said=$(inside sh -c 'readlink -f "$(man -w zeroplan-hw-measure)"')
  [[ $said = "$man/man1/"* ]] || fail "$name: man -w zeroplan-hw-measure finds '$said'"
  inside sh -c "for page in $man/man1/zeroplan*.1*; do zcat -f \$page | mandoc -T lint -W warning || exit 1; done" ||
    fail "$name: mandoc finds fault with a page"
  inside mkdir -p /tmp/complete
  cp tests/fixtures/completions/* "$root/tmp/complete/"
  # Each shell finds the script where its own start-up files look for it.
  said=$(inside bash -c ". /usr/share/bash-completion/bash_completion; _completion_loader zeroplan
    complete -p zeroplan; bash /tmp/complete/complete.bash $bash zeroplan train --backend ''" | xargs)
  [ "$said" = "complete -F _zeroplan zeroplan cpu cuda auto" ] || fail "$name: bash completes '$said'"
  # shellcheck disable=SC2016  # zsh expands these
  said=$(inside zsh -c 'autoload -Uz compinit; compinit -D -u; echo $_comps[zeroplan]; whence -v _zeroplan > /dev/null
    autoload +X -Uz _zeroplan; echo $functions_source[_zeroplan]' | xargs)
  [ "$said" = "_zeroplan $zsh" ] || fail "$name: zsh finds '$said'"
  said=$(inside zsh -f /tmp/complete/complete.zsh "$(dirname "$zsh")" 'zeroplan train --backend ' | sort -u | xargs)
  [ "$said" = "auto cpu cuda" ] || fail "$name: zsh completes '$said'"
  said=$(inside env XDG_DATA_DIRS=/usr/local/share:/usr/share fish -c 'complete -C "zeroplan train --backend "' | cut -f 1 | sort | xargs)
  [ "$said" = "auto cpu cuda" ] || fail "$name: fish completes '$said'"
  [ -e "$root$fish" ] || fail "$name: there is no $fish"
}

readers=(man-db mandoc bash-completion zsh fish)

test_deb() {
  local said
  enter_fresh
  say "$1: the package $(basename "$deb") in a bare system"
  cp "$deb" "$root/tmp/zeroplan.deb"
  inside apt-get update -qq
  install_packages /tmp/zeroplan.deb
  use_zeroplan "$1, .deb"
  install_packages "${readers[@]}"
  read_and_complete "$1, .deb" /usr/share/man /usr/share/bash-completion/completions/zeroplan \
    /usr/share/zsh/vendor-completions/_zeroplan /usr/share/fish/vendor_completions.d/zeroplan.fish
  inside dpkg --verify zeroplan || fail "$1: files of the package differ from what it says"
  inside apt-get purge -y -qq zeroplan > /dev/null
  # But for what readers of pages keep.
  said=$(inside find / -xdev \( -path /proc -o -path /tmp -o -path /var/cache \) -prune -o -name '*zeroplan*' -print)
  [ -z "$said" ] ||
    fail "$1: the package leaves behind: $said"
}

# Puts what pip needs of this machine's settings into `settings`.
pip_settings() {
  settings=()
  if [ -n "${PIP_CERT:-}" ]; then
    cp -L "$PIP_CERT" "$root/tmp/pip_cert.pem"
    settings+=(PIP_CERT=/tmp/pip_cert.pem)
  fi
  [ -z "${PIP_INDEX_URL:-}" ] || settings+=(PIP_INDEX_URL="$PIP_INDEX_URL")
}

# Prints the seconds of a command inside.
seconds_inside() {
  local begin=$EPOCHREALTIME end
  inside "$@" > "$work/timed.log" 2>&1 || { cat "$work/timed.log" >&2; fail "$*"; }
  end=$EPOCHREALTIME
  awk "BEGIN { printf \"%.1f\", $end - $begin }"
}

# The wheels, the archive and the package of $dist.
test_release() {
  local said before after
  enter_fresh
  say "$1: the wheels in a bare system"
  inside apt-get update -qq
  install_packages python3-venv
  ! inside sh -c 'command -v cc || command -v c++' || fail "$1: there is a compiler"
  mkdir -p "$root/tmp/dist"
  cp "$dist"/* "$root/tmp/dist/"
  inside python3 -m venv /opt/env
  # pip's own files of a first start are not counted as ours.
  inside /opt/env/bin/python -m pip --version > /dev/null
  before=$(inside find /opt/env ! -name __pycache__ ! -name '*.pyc')
  said="pip install $(seconds_inside sh -c '/opt/env/bin/python -m pip install --no-index /tmp/dist/zeroplan-*.whl') s"
  # All weights do not fit there (exit code 3), which is an answer, too.
  said+=", first plan $(seconds_inside sh -c '/opt/env/bin/zeroplan plan qwen2.5-7b --hw 4090 || [ $? -eq 3 ]') s"
  said+=", all methods $(seconds_inside /opt/env/bin/zeroplan plan qwen2.5-7b --hw 4090 --method all) s"
  say "$1: $said"
  cat "$work/timed.log"
  ! inside /opt/env/bin/zeroplan train --model gpt2 --data /etc/passwd 2> "$work/refused" || fail "$1: train alone"
  grep -q "pip install 'zeroplan\[train\]'" "$work/refused" || fail "$1: $(cat "$work/refused")"
  inside sh -c '/opt/env/bin/python -m pip install --quiet --no-index --no-deps /tmp/dist/zeroplan_train-*.whl'
  use_zeroplan "$1, wheels" /opt/env/bin
  inside /opt/env/bin/python -c 'import zeroplan
plan = zeroplan.plan(model="gpt2-xl", gpus=8, hw="hgx-h200", quick=True)
assert plan.choice' || fail "$1: the Python module"
  inside /opt/env/bin/zeroplan doctor || true
  inside /opt/env/bin/python -m pip uninstall --quiet --yes zeroplan zeroplan-train
  after=$(inside find /opt/env ! -name __pycache__ ! -name '*.pyc')
  [ "$before" = "$after" ] || fail "$1: uninstalling leaves $(diff <(echo "$before") <(echo "$after"))"
  say "$1: the archive"
  zstd -dc "$dist"/zeroplan-*.tar.zst | tar -C "$root/opt" -xf -
  use_zeroplan "$1, archive" "/opt/$(cd "$root/opt" && echo zeroplan-*)/bin"
  deb=$(realpath "$dist"/zeroplan_*.deb)
  test_deb "$1"
}

# pip install of the sources in $root, into an environment of its own. What is compiled for it already is
# taken as it is. Its tools come from PyPI, as pip is set up here.
test_pip() {
  say "$1: pip install"
  install_packages python3-venv ca-certificates
  local settings=()
  pip_settings
  inside "${settings[@]}" sh -euc 'python3 -m venv /opt/zeroplan
    /opt/zeroplan/bin/python -m pip install --quiet --config-settings=cmake.define.ZEROPLAN_PREBUILT=/src/build/package /src' ||
    fail "$1: pip install"
  use_zeroplan "$1, pip" /opt/zeroplan/bin
  inside /opt/zeroplan/bin/python -c 'import zeroplan
plan = zeroplan.plan(model="gpt2-xl", gpus=8, hw="hgx-h200", quick=True)
print("zeroplan", zeroplan.__version__, "in Python:", plan.choice)
assert plan.choice' || fail "$1: the Python module"
}

# Builds in a bare system, and leaves its package in $deb.
test_source() {
  enter_fresh
  say "$1: from source in a bare system ($jobs compilers at once)"
  mkdir -p "$root/src"
  git ls-files -z | tar --null -T - -cf - | tar -C "$root/src" -xf -
  commit=$(git -c safe.directory="$source_dir" log -1 --format=%h)
  date=$(git -c safe.directory="$source_dir" log -1 --format=%cs)
  inside apt-get update -qq
  install_packages python3-dev
  inside sh -euc "cd /src; scripts/setup.sh package
    cmake --preset package -DZEROPLAN_COMMIT=$commit \
      -DZEROPLAN_COMMIT_DATE=$date > configured
    cmake --build --preset package > built 2>&1 || { tail -n 40 built; exit 1; }
    cmake --install build/package > installed" || fail "$1: build from source"
  use_zeroplan "$1, from source"
  install_packages "${readers[@]}" dpkg-dev file
  read_and_complete "$1, from source" /usr/local/share/man \
    /usr/local/share/bash-completion/completions/zeroplan /usr/local/share/zsh/site-functions/_zeroplan \
    /usr/local/share/fish/vendor_completions.d/zeroplan.fish
  inside sh -euc "cd /src/build/package; cpack -G DEB > packed || { cat packed; exit 1; }" || fail "$1: cpack"
  cp "$root"/src/build/package/zeroplan_*.deb "$work/"
  test_pip "$1"
  deb=$(realpath "$work"/zeroplan_*.deb)
}

given=$deb
left_out=()
for system in "${systems[@]}"; do
  if ! make_bare "$system"; then
    left_out+=("$system")
    say "$system is NOT TESTED: $reason; a bare system of yours is taken as a folder or tar file"
    continue
  fi
  if [ -n "$dist" ]; then
    test_release "$system"
    say "$system: installed, used and removed"
    continue
  fi
  deb=$given
  [ -n "$given" ] || test_source "$system"
  test_deb "$system"
  [ -n "$given" ] || rm -f "$deb"
  say "$system: installed, used and removed"
done
[ ${#left_out[@]} -lt ${#systems[@]} ] || fail "nothing was tested"
[ ${#left_out[@]} -eq 0 ] || say "not tested: ${left_out[*]}"
