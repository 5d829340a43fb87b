#!/usr/bin/env bash
# Checks that instructions of AVX run on no CPU without it: all that the kernels of v3 and v4 export is
# their table, which is data that no code initialises, and no other object of its libraries has such an instruction.
# Usage: check_objects.sh BUILD NM OBJDUMP
set -euo pipefail
cd "$1"
nm=$2 objdump=$3
fail() { echo "zeroplan: $*" >&2; exit 1; }

for level in v3 v4; do
  object=zeroplan_kernels_$level.o
  # A local symbol has a small letter, but for u, v and w.
  exported=$("$nm" --defined-only "$object" | awk '$2 ~ /^[A-Zuvw]$/ { print $3 }')
  [ "$exported" = "zeroplan_kernels_$level" ] || fail "$object exports: $exported"
  "$objdump" --section-headers "$object" | grep -E '\.(init_array|ctors|preinit_array|init)\b' >&2 &&
    fail "$object has code that runs before main"
  "$objdump" -d "$object" | grep '%ymm' > /dev/null || fail "$object has no instruction of AVX: is this test blind?"
done

# An instruction of AVX begins with v and has a vector register.
libraries=(libzeroplan_*.a)
[ -e "${libraries[0]}" ] || fail "there is no library in $PWD"
for library in "${libraries[@]}"; do
  "$objdump" -d --no-show-raw-insn "$library" | awk -v library="$library" '
    /^[^ ]+:     file format/ { object = $1 }
    object ~ /^zeroplan_kernels_v[34]\.o:/ { next }
    /^[0-9a-f]+ <.*>:$/ { symbol = $2 }
    $2 ~ /^v/ && /%[xyz]mm/ { print library, object, symbol, $0; found = 1; exit }
    END { exit found }' >&2 || fail "$library: AVX outside of the kernels that are chosen at run time"
done
