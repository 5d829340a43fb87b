#!/usr/bin/env python3
"""Where the time of a training step goes, kernel by kernel, from `zeroplan train --trace`.

    zeroplan train ... --steps 8 --trace trace.json
    python3 benchmarks/trace_table.py trace.json [--step 6] [--process "rank 0"] [--json]

Without --process the first rank that was measured; the step as predicted is the process "predicted",
which `estimate --trace` and `explain --trace` write alone. Steps are cut where the embedding first begins after an update. For each stream: kernels and
collectives with their count, time and share of the step, and how long the stream had nothing to do.
Standard library only.
"""
import argparse
import collections
import gzip
import json
import pathlib
import sys


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path, help="may be .gz")
    parser.add_argument("--step", type=int, help="from 1; default: the last whole one")
    parser.add_argument("--process", help="such as 'rank 1' or predicted")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def load(path, wanted):
    """Slices of one process, its streams by thread, and its name."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    processes = {e["args"]["name"]: e["pid"] for e in events
                 if e["ph"] == "M" and e["name"] == "process_name"}
    name = wanted or min(processes, key=lambda name: (name == "predicted", processes[name]))
    if name not in processes:
        sys.exit(f"{path}: --process {name}: it has {', '.join(processes)}")
    pid = processes[name]
    # The lane of layers says again what the compute stream did.
    streams = {e["tid"]: e["args"]["name"] for e in events
               if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == pid
               and e["args"]["name"] != "layers"}
    return [e for e in events if e["ph"] == "X" and e["tid"] in streams], streams, name


def step_bounds(spans, alone):
    """Start of every optimizer step: the first embedding after an update. A step that is there
    alone ends with its last slice."""
    starts, updated = [], True
    for span in sorted(spans, key=lambda e: e["ts"]):
        if span["args"].get("section") == "optimizer_step":
            updated = True
        elif updated and span["name"].startswith("embed_forward"):
            starts.append(span["ts"])
            updated = False
    if alone and starts:
        starts.append(max(span["ts"] + span["dur"] for span in spans))
    return starts


def tables(spans, streams, begin, end):
    result = []
    for tid, stream in sorted(streams.items()):
        rows, busy, reached = collections.defaultdict(lambda: [0, 0.0]), 0.0, begin
        inside = [e for e in spans if e["tid"] == tid and begin <= e["ts"] < end]
        for span in sorted(inside, key=lambda e: e["ts"]):
            stop = span["ts"] + span["dur"]
            rows[span["name"]][0] += 1
            rows[span["name"]][1] += span["dur"]
            busy += max(0.0, stop - max(reached, span["ts"]))
            reached = max(reached, stop)
        if rows:
            result.append({"stream": stream, "idle_us": end - begin - busy,
                           "rows": [{"name": name, "count": count, "us": us} for name, (count, us)
                                    in sorted(rows.items(), key=lambda item: -item[1][1])]})
    return result


def main():
    args = parse()
    spans, streams, process = load(args.trace, args.process)
    starts = step_bounds(spans, process == "predicted")
    last = len(starts) - 1
    step = args.step if args.step is not None else last
    if not 1 <= step <= last:
        print(f"{args.trace}: --step {step}: {max(last, 0)} whole steps are in it; train with more "
              "--steps", file=sys.stderr)
        return 2
    begin, end = starts[step - 1], starts[step]
    result = tables(spans, streams, begin, end)
    if args.json:
        print(json.dumps({"step": step, "us": end - begin, "streams": result}))
        return 0
    print(f"step {step}: {(end - begin) / 1e3:.2f} ms")
    for table in result:
        print(f"\n{table['stream']}: idle {table['idle_us'] / 1e3:.2f} ms")
        for row in table["rows"]:
            share = 100 * row["us"] / (end - begin)
            print(f"  {row['name']:26} {row['count']:5} {row['us'] / 1e3:9.2f} ms {share:5.1f} %  "
                  f"{row['us'] / row['count']:8.1f} us each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
