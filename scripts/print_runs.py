#!/usr/bin/env python3
"""Prints the runs that docs/runtimes.md sums up: predicted beside measured, of DeepSpeed and FSDP2.

    scripts/print_runs.py                                # the tables that there are
    scripts/print_runs.py deepspeed-memory times         # these
    scripts/print_runs.py deepspeed-memory --only "stage 3, recompute"
    scripts/print_runs.py all --markdown
"""
import argparse
import re
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "runtimes" / "predicted.txt"
ERROR = re.compile(r"([-+]\d+\.\d) %$")


def tables():
    """Name: (what it is, head, rows), in the file's order."""
    found, name = {}, None
    for line in DATA.read_text(encoding="utf-8").split("\n"):
        if line.startswith("["):
            name = line.strip("[]")
            found[name] = ([], [])
        elif name and line.startswith("# "):
            found[name][0].append(line[2:])
        elif name and line.startswith("|"):
            found[name][1].append([cell.strip() for cell in line.strip("|").split("|")])
    return {name: (" ".join(about), rows[0], rows[2:]) for name, (about, rows) in found.items()}


def print_table(head, rows, markdown):
    if markdown:
        for row in [head, ["---"] * len(head)] + rows:
            print("| " + " | ".join(row) + " |")
        return
    widths = [max(len(row[i]) for row in [head] + rows) for i in range(len(head))]
    for row in [head] + rows:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]
        print("  ".join(cells).rstrip())


def print_errors(head, rows):
    """The worst and the mean of each column whose cells end in an error."""
    summary = []
    for i, title in enumerate(head):
        errors = [abs(float(match[1])) for row in rows if (match := ERROR.search(row[i]))]
        if errors:
            summary.append([title, str(len(errors)), f"{max(errors):.1f} %",
                            f"{sum(errors) / len(errors):.1f} %"])
    if summary:
        print()
        print_table(["error", "runs", "worst", "mean"], summary, False)


def main():
    known = tables()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("table", nargs="*", help="names of tables, or all; none: list them")
    parser.add_argument("--only", metavar="TEXT", help="rows whose first cell contains TEXT")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    args = parser.parse_args()
    if not args.table:
        for name, (about, _, rows) in known.items():
            print(f"{name} ({len(rows)} rows): {about}")
        return 0
    for name in list(known) if args.table == ["all"] else args.table:
        if name not in known:
            sys.exit(f"{name}: no such table; there are {', '.join(known)}")
        about, head, rows = known[name]
        rows = [row for row in rows if not args.only or args.only in row[0]]
        print(f"{name}: {about}\n")
        print_table(head, rows, args.markdown)
        print_errors(head, rows)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
