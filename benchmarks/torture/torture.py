#!/usr/bin/env python3
"""Attacks runs of zeroplan and says what was tried and what survived.

    python3 benchmarks/torture/torture.py                    # the short form, under 30 s
    python3 benchmarks/torture/torture.py --full             # everything; an hour on two cores
    python3 benchmarks/torture/torture.py --only kills --kills 500
    python3 benchmarks/torture/torture.py --only kills --kills 20 --backend cuda --gpus 2

Kills (SIGKILL) hit `zeroplan train` on the CPU, whose ranks are threads of one process, the parent
that --restarts gives it, and processes that meet, save and resume through zeroplan's own parts
(saving_rank.cc): any rank, rank 0, the launcher; at random instants, half of them in a save; and `merge`
and `data tokenize`, which get SIGTERM, SIGINT and SIGHUP too (writers.py). With
--backend cuda ranks are processes of `zeroplan train` itself. Besides: every I/O call of a resume and
its saves fails once (tests/fixtures/fake_io), a disk fills up, files of a checkpoint are damaged,
ranks are stopped, networks are cut, silent or slow, memory is limited, the wall clock jumps. torchrun,
srun and mpirun start ranks, one of which is killed, where they are installed.

After each attack the run is resumed. Its weights, optimizer states and place in the data have to be
those of an undisturbed run, bit by bit; no checkpoint may be lost; a stopped or cut-off rank has to
be named, and every process gone; with --deadlines (which --full and --only set) within its deadline and 30 s, else
(--no-deadlines) whenever that may be, so that a busy machine changes no verdict. Prints a table; exit code 1 if
anything did not hold, with what was seen. What this machine does not allow (mounting, network
namespaces, control groups) is a row that says so.
"""
import argparse
import collections
import contextlib
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

import disks
import kills
import launchers
import machine
import networks
from runs import Bench, Failure

GROUPS = ["kills", "disks", "networks", "machine", "launchers"]
SHORT = dict(kills=12, io_stride=149, damages=4, full_disks=1, stops=1, cuts=1, silents=0, slows=0,
             memories=1, clocks=1, pauses=1, launchers=0, silence=4)
FULL = dict(kills=300, io_stride=1, damages=200, full_disks=11, stops=12, cuts=6, silents=3, slows=4,
            memories=11, clocks=22, pauses=11, launchers=3, silence=networks.SILENCE)


class Table:
    """What was tried, how often, and what survived."""

    def __init__(self):
        self.counts = collections.defaultdict(collections.Counter)
        self.details = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
        self.notes = collections.defaultdict(dict)
        self.failures = []

    def count(self, attack, outcome, detail):
        self.counts[attack][outcome] += 1
        self.details[attack][outcome][detail] += 1

    def longest(self, attack, what, seconds):
        self.notes[attack][what] = max(seconds, self.notes[attack].get(what, seconds))

    def note(self, attack, text):
        self.notes[attack][text] = None

    def skip(self, attack, why):
        self.counts[attack]["not tried: " + why] += 0

    @contextlib.contextmanager
    def guard(self, attack):
        try:
            yield
        except Failure as failure:
            self.failures.append((attack, str(failure)))
            print(f"FAILED  {attack}: {failure}", file=sys.stderr, flush=True)

    def print(self):
        for attack, outcomes in self.counts.items():
            print(attack)
            for outcome, count in outcomes.items():
                print(f"  {count or '-':>5}  {outcome}")
                details = self.details[attack][outcome]
                named = [f"{name} {number}" for name, number in details.most_common() if name]
                if named:
                    print(f"         {', '.join(named)}")
            for note, seconds in self.notes[attack].items():
                text = note if seconds is None else f"{seconds:.1f} s at most {note}"
                print(f"         {text}")
        tried = sum(sum(outcomes.values()) for outcomes in self.counts.values())
        print(f"{tried} attacks survived, {len(self.failures)} not")


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--build", default=root / "build" / "release",
                        help="folder with the built programs (default: build/release)")
    parser.add_argument("--full", action="store_true", help="everything, not the short form")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--kills", type=int, help="processes to kill, at least")
    parser.add_argument("--io-stride", type=int, help="of the I/O calls each so-manieth fails")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="after which kills and I/O errors come to their end")
    parser.add_argument("--deadlines", action=argparse.BooleanOptionalAction, default=None,
                        help="runs have to end in time, or may take what a busy machine gives them")
    parser.add_argument("--seed", type=int, help="of the attacks (default: another each time)")
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--gpus", type=int, default=2, help="of a run on GPUs")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    parser.add_argument("--work", help="folder to work in (default: a temporary one)")
    args = parser.parse_args()
    if args.backend == "cuda" and args.only != ["kills"]:
        parser.error("--backend cuda: only kills run on GPUs; add --only kills")
    return args


def main():
    args = parse()
    plan = dict(FULL if args.full else SHORT)
    if args.deadlines is None:
        args.deadlines = args.full or args.only != GROUPS
    plan["kills"] = args.kills or plan["kills"]
    plan["io_stride"] = args.io_stride or plan["io_stride"]
    if "launchers" in args.only and args.only != GROUPS:
        plan["launchers"] = max(1, plan["launchers"])
    seed = args.seed if args.seed is not None else random.randrange(10**9)
    print(f"seed {seed}", flush=True)
    root = tempfile.mkdtemp(prefix="zeroplan-torture-", dir=args.work)
    bench = Bench(args, random.Random(seed), root)
    for program in (bench.zeroplan, bench.ranks_program, bench.shim, bench.clock):
        if not program.exists():
            sys.exit(f"{program} is missing; build it, or name the build's folder with --build")
    table = Table()
    begin = time.monotonic()
    bench.out_of_time = lambda: time.monotonic() - begin > args.seconds
    attacks = {
        "kills": lambda: kills.run(bench, table, plan["kills"]),
        "disks": lambda: disks.run(bench, table, plan["io_stride"], plan["damages"],
                                   plan["full_disks"]),
        "networks": lambda: networks.run(bench, table, plan["stops"], plan["cuts"],
                                         plan["silents"], plan["slows"], plan["silence"]),
        "machine": lambda: machine.run(bench, table, plan["memories"], plan["clocks"],
                                       plan["pauses"]),
        "launchers": lambda: launchers.run(bench, table, plan["launchers"]),
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # prints the table first
    try:
        for name in args.only:
            attacks[name]()
            print(f"{name}: done after {time.monotonic() - begin:.0f} s", flush=True)
    finally:
        bench.end_all()
        if args.keep or table.failures:
            print(f"runs are in {root}", flush=True)
        else:
            shutil.rmtree(root, ignore_errors=True)
        table.print()
        print(f"{time.monotonic() - begin:.0f} s")
    return 1 if table.failures else 0


if __name__ == "__main__":
    sys.exit(main())
