#!/usr/bin/env python3
"""Compares the answers of two builds of zeroplan to random command lines, byte for byte.

    scripts/compare_answers.py OLD/zeroplan NEW/zeroplan
    scripts/compare_answers.py OLD/zeroplan NEW/zeroplan --count 1000 --seed 7 --keep /tmp/runs

It is for changes that must not change an answer. Commands cover the settings of how to train:
options, DeepSpeed configs, plans, checkpoints, and conflicts between them (random_commands.py). A
scenario has 1 to 5 commands; a later one reads what an earlier one wrote. Both builds get the same
inputs, in folders whose names have the same length. Stdout, stderr, exit codes and written files
are compared. Only what differs from run to run is masked: measured times, process ids, folders,
random names. The folder of each binary must contain zeroplan-executor. The exit code is 1 if an answer
differs. --keep DIR keeps the runs.
"""
import argparse
import collections
import concurrent.futures
import difflib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from random_commands import Scenario

LIMIT_SECONDS = 120


NUMBER = r"-?\d[\d.]*(?:e[-+]?\d+)?"
# Masks values that differ from run to run: in every answer, and in measurements of train and generate.
ALWAYS = [(re.compile(pattern), mask) for pattern, mask in [
    (r"(zeroplan_why_|probe-|\bprocess )\d+", r"\1<pid>"),
    (rf'("lowered":\s*\d+,\s*"seconds":\s*){NUMBER}', r"\1<measured>"),
    (r"(\.tmp-step-\d+-)[0-9a-f]{16}", r"\1<random>"),
    (r'("(?:header_hash|digest)":\s*")[0-9a-f]{16}', r"\1<of a random name>")]]
SEARCHED = re.compile(rf"Searched \d+ choices?\s+in\s+{NUMBER}\s+\w+:[^.]*\.")
MEASURED = [(re.compile(pattern), mask) for pattern, mask in [
    (rf'("(?:\w*_seconds|step_seconds_median|tokens_per_second|slowest_rank\w*)":\s*){NUMBER}',
     r"\1<measured>"),
    (rf"{NUMBER}( tok/s)", r"<measured>\1"),
    (rf"(median ){NUMBER}( m?s a step)", r"\1<measured>\2"),
    (rf"(the first after ){NUMBER} m?s, then {NUMBER}( a second)", r"\1<measured>\2")]]
MEASURED_COLUMNS = re.compile(r"\w*seconds|tokens_per_second|slowest_rank\w*")
TMP_NAME = re.compile(rb"(\.tmp-step-\d+-)[0-9a-f]{16}")  # in a checkpoint's header


def without_search_time(match):
    """The sentence on one line, since its breaks depend on the time's length."""
    return re.sub(rf" in {NUMBER} \w+:", " in <measured>:", " ".join(match.group().split()))


def masked(data, hidden, measures):
    """`data` as text without what differs from run to run; of other bytes than text a hash."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        fixed = TMP_NAME.sub(rb"\1", data)
        return f"{len(data)} bytes, sha256 {hashlib.sha256(fixed).hexdigest()}\n"
    for path, name in hidden:
        text = text.replace(str(path), name)
    for pattern, mask in ALWAYS + (MEASURED if measures else []):
        text = pattern.sub(mask, text)
    text = SEARCHED.sub(without_search_time, text)
    if text.startswith("step,loss,"):
        head, *rows = (line.split(",") for line in text.split("\n"))
        text = "\n".join(",".join("" if MEASURED_COLUMNS.fullmatch(name) else cell
                                  for name, cell in zip(head, row)) for row in [head] + rows)
    return text


def run(scenario, binary, side):
    """The answers to a scenario's commands: of each a dictionary, name: text."""
    folder, home = side / scenario.name, side / (scenario.name + ".home")
    (folder / "swap").mkdir(parents=True)
    home.mkdir()
    for name, content in scenario.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home), "COLUMNS": "100",
                   "TMPDIR": str(home), "HF_HOME": str(home), "ZEROPLAN_NO_DETECT": "1"}
    hidden = [(home, "<HOME>"), (folder, "<FOLDER>"), (binary.parent, "<BUILD>")]
    answers, seen = [], {}
    for command in scenario.commands:
        try:
            done = subprocess.run([str(binary), *command], cwd=folder, env=environment, check=False,
                                  stdin=subprocess.DEVNULL, capture_output=True,
                                  timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(command, f"none in {LIMIT_SECONDS} s", b"", b"")
        measures = command[:1] in (["train"], ["generate"])
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = {str(path.relative_to(folder)):
                 masked(path.read_bytes(), hidden, path.stem == "run") for path in paths}
        answers.append({"exit code": str(done.returncode),
                        "stdout": masked(done.stdout, hidden, measures),
                        "stderr": masked(done.stderr, hidden, measures),
                        **{name: text for name, text in files.items() if seen.get(name) != text},
                        **{name: "(removed)" for name in seen if name not in files}})
        seen = files
    return answers


def difference(title, old, new):
    """The title and a short unified diff; "" where the answers are the same."""
    lines = []
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            continue
        sides = [[part for line in answer.get(name, "(absent)").splitlines()
                  for part in (line.replace(",", ",\n").split("\n") if len(line) > 200 else [line])]
                 for answer in (old, new)]
        diff = list(difflib.unified_diff(*sides, f"old {name}", f"new {name}", n=1, lineterm=""))
        lines += [line[:200] for line in diff[:24]] + ["..."] * (len(diff) > 24)
    return "\n".join([title, *lines, ""]) if lines else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--count", type=int, default=200, help="commands (default 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    parser.add_argument("--keep", type=Path, help="folder for the runs (default: a temporary one)")
    options = parser.parse_args()
    scenarios, commands = [], 0
    while commands < options.count:
        scenarios.append(Scenario(options.seed, len(scenarios)))
        del scenarios[-1].commands[options.count - commands:]
        commands += len(scenarios[-1].commands)
    root = (options.keep or Path(tempfile.mkdtemp(prefix="compare_answers_"))).resolve()
    builds = [(options.old.resolve(), root / "old"), (options.new.resolve(), root / "new")]
    if any(side.exists() for _, side in builds):
        sys.exit(f"{root} has runs already; remove them, or name another folder")
    differ, codes = 0, collections.Counter()
    try:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            runs = [[pool.submit(run, scenario, *build) for build in builds]
                    for scenario in scenarios]
            for scenario, (old, new) in zip(scenarios, runs):
                for command, *answers in zip(scenario.commands, old.result(), new.result()):
                    codes[answers[0]["exit code"]] += 1
                    if text := difference(f"{scenario.name}: {shlex.join(command)}", *answers):
                        differ += 1
                        print(text, flush=True)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    print("exit codes of the old build:",
          ", ".join(f"{code}: {count}" for code, count in sorted(codes.items())))
    print(f"{commands} commands, {differ} differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
