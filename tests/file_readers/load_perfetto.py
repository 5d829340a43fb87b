#!/usr/bin/env python3
"""--trace files in Perfetto's trace processor.

    ZEROPLAN_TRACE_PROCESSOR=/path/to/trace_processor_shell \\
      python3 tests/file_readers/load_perfetto.py build/release/zeroplan .

A plan for two GPUs is rehearsed on the CPU with --trace. Perfetto must import the file without errors
or lost data, and find the processes, the lanes, the counters and every arrow. Exit code 1 where it
does not; 77 without the package `perfetto` or its binary: the package has none in it and downloads one
when it is first used, which a test does not do. What the file must be for any viewer is checked without
either, in tests/cli/trace_test.cc.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKIP = 77
try:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
except ImportError as missing:
    print(f"skipped: {missing} (python3 -m pip install perfetto)")
    sys.exit(SKIP)
SHELL = os.environ.get("ZEROPLAN_TRACE_PROCESSOR")
if not SHELL:
    print("skipped: ZEROPLAN_TRACE_PROCESSOR names no trace_processor_shell")
    sys.exit(SKIP)

CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32,
          "vocab_size": 256}


def write_trace(zeroplan, source, work):
    (work / "config.json").write_text(json.dumps(CONFIG))
    subprocess.run([zeroplan, "plan", "--model", work / "config.json", "--seq-len", "32", "--gpus",
                    "2", "--stage", "2", "--global-batch", "8", "--micro-batch", "1", "--hw",
                    "dgx-h100", "--plan-out", work / "plan.json"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([zeroplan, "train", "--plan", work / "plan.json", "--data", source / "LICENSE",
                    "--backend", "cpu", "--threads", "1", "--steps", "3", "--trace",
                    work / "t.json"], check=True, stderr=subprocess.DEVNULL)
    return json.loads((work / "t.json").read_text())["traceEvents"]


def main():
    zeroplan, source = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        events = write_trace(zeroplan, source, work)
        processor = TraceProcessor(trace=str(work / "t.json"),
                                   config=TraceProcessorConfig(bin_path=SHELL))
        try:
            def ask(sql):
                return [tuple(row.__dict__.values()) for row in processor.query(sql)]

            bad = ask("select name, value from stats "
                      "where severity in ('error', 'data_loss') and value > 0")
            assert not bad, bad
            names = {name for name, in ask("select name from process where name is not null")}
            assert {"predicted", "rank 0", "rank 1"} <= names, names
            lanes = ask("select process.name, thread.name from thread join process using (upid) "
                        "where process.name is not null and thread.name is not null")
            of = {p: {t for q, t in lanes if q == p} for p in ("predicted", "rank 0", "rank 1")}
            assert of["predicted"] == of["rank 0"] == of["rank 1"], of
            slices, = ask("select count(*) from slice")
            assert slices[0] == sum(e["ph"] == "X" for e in events), slices
            nested, = ask("select count(*) from slice where depth > 0 or dur < 0")
            assert nested[0] == 0, nested
            counters = {name for name, in ask("select name from process_counter_track")}
            assert "device bytes activations" in counters, counters
            flows, = ask("select count(*) from flow")
            assert flows[0] == sum(e["ph"] == "s" for e in events), flows
            print(f"perfetto: {slices[0]} slices, {flows[0]} arrows, {len(counters)} counters")
        finally:
            processor.close()


if __name__ == "__main__":
    main()
