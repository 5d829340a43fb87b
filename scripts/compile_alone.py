#!/usr/bin/env python3
"""Compiles each product file alone, syntax only: without the precompiled headers and without the neighbours that
the usual builds compile it with, so that a missing include or a name of a neighbour's is seen. Warnings
are errors. CUDA sources are left out.

    scripts/compile_alone.py                  # all files: 11 minutes of processor time
    scripts/compile_alone.py --since COMMIT   # files that differ from it, and those that include such
    scripts/compile_alone.py core/base/*.cc   # these
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "alone"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
OPTIONS = ["ZEROPLAN_UNITY=OFF", "CMAKE_DISABLE_PRECOMPILE_HEADERS=ON", "ZEROPLAN_CUDA=OFF",
           "ZEROPLAN_TESTS=OFF", "ZEROPLAN_BENCHMARKS=OFF", "ZEROPLAN_WERROR=ON"]


def commands():
    """Of each source, from the root of the tree: the compiler's words, and where they are said."""
    subprocess.run(["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *[f"-D{option}" for option in OPTIONS]],
                   check=True, stdout=subprocess.DEVNULL)
    found = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        file = pathlib.Path(entry["file"])
        if file.is_relative_to(BUILD) or not file.is_relative_to(ROOT):
            continue
        words = shlex.split(entry["command"])
        at = words.index("-o")
        del words[at:at + 2]
        words.remove("-c")
        found[str(file.relative_to(ROOT))] = (words + ["-fsyntax-only"], entry["directory"])
    return found


def with_includers(changed, sources):
    """Those of `sources` that are `changed` or include, at whatever remove, what is."""
    files = subprocess.run(["git", "ls-files", "*.h", "*.inc", *sources], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split()
    includes = {file: set(INCLUDE.findall((ROOT / file).read_text(errors="replace")))
                for file in files if (ROOT / file).exists()}
    reached = set(changed)
    while True:
        more = {file for file, others in includes.items() if file not in reached and others & reached}
        if not more:
            return sorted(reached & set(sources))
        reached |= more


def compile_one(command):
    words, folder = command
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", help="a commit")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    begin = time.monotonic()
    all_commands = commands()
    chosen = sorted(all_commands)
    if args.since:
        changed = subprocess.run(["git", "diff", "--name-only", args.since], cwd=ROOT, check=True,
                                 capture_output=True, text=True).stdout.split()
        chosen = with_includers(changed, chosen)
    if args.files:
        chosen = [str(pathlib.Path(file).resolve().relative_to(ROOT)) for file in args.files]
    failed = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = pool.map(compile_one, [all_commands[file] for file in chosen])
        for file, errors in zip(chosen, said):
            if errors:
                failed.append(file)
                print(errors, file=sys.stderr, flush=True)
    print(f"zeroplan: {len(chosen)} of {len(all_commands)} files compiled alone in "
          f"{time.monotonic() - begin:.0f} s, {len(failed)} not: {' '.join(failed)}".rstrip(" :"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
