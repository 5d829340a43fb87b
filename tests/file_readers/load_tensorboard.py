#!/usr/bin/env python3
"""`train --tensorboard` as TensorBoard itself reads it.

    python3 tests/file_readers/load_tensorboard.py build/release/zeroplan .

A run is killed with half a record in its file, and resumed from a checkpoint that is older than its
last steps. TensorBoard's EventAccumulator must then have every step once, and the values that
--metrics has for the step (as fp32, which event files keep). Exit code 1 where it does not; 77
where the package is missing.
"""
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

SKIP = 77
try:
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
except ImportError as missing:
    print(f"skipped: {missing} (python3 -m pip install tensorboard)")
    sys.exit(SKIP)

CONFIG = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32,
          "vocab_size": 256}
FIELDS = {("step", "loss"): "train/loss", ("step", "grad_norm"): "train/grad_norm",
          ("step", "lr"): "train/lr", ("step", "loss_scale"): "train/loss_scale",
          ("step", "skipped"): "train/skipped", ("step", "step_seconds"): "speed/step_seconds",
          ("step", "tokens_per_second"): "speed/tokens_per_second",
          ("validation", "loss"): "validation/loss",
          ("validation", "perplexity"): "validation/perplexity",
          ("saved", "write_seconds"): "save/write_seconds",
          ("saved", "stall_seconds"): "save/stall_seconds"}


def fp32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def train(zeroplan, source, work, steps, *more):
    subprocess.run([zeroplan, "train", "--model", work / "config.json", "--data",
                    source / "LICENSE", "--threads", "1", "--backend", "cpu", "--gpus", "2",
                    "--stage", "2", "--validate-every", "3", "--save-every", "8", "--steps",
                    str(steps), "--save", work / "out", "--tensorboard", work / "runs",
                    "--metrics", work / "m.jsonl", *more],
                   check=True, stderr=subprocess.DEVNULL)


def main():
    zeroplan, source = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        (work / "config.json").write_text(json.dumps(CONFIG))
        train(zeroplan, source, work, 13)
        # As after a kill: the newest checkpoint is that of step 8, the last record half written.
        shutil.rmtree(work / "out/checkpoints/step-00000013")
        (work / "out/checkpoints/latest").unlink()
        first, = (work / "runs").iterdir()
        last_record = first.read_bytes()[-40:]
        with first.open("ab") as file:
            file.write(struct.pack("<Q", 500) + last_record)
        train(zeroplan, source, work, 20, "--resume")
        files = sorted((work / "runs").iterdir())
        assert len(files) == 2 and files[0] == first, files
        starts = [(e.step, e.session_log.status) for e in EventFileLoader(str(files[1])).Load()
                  if e.HasField("session_log")]
        assert starts == [(9, 1)], starts

        expected = {}
        for line in map(json.loads, (work / "m.jsonl").read_text().splitlines()):
            if line["event"] == "start":  # what comes again, or not at all
                for values in expected.values():
                    for step in [step for step in values if step > 8]:
                        del values[step]
            for (event, field), tag in FIELDS.items():
                if line["event"] == event:
                    expected.setdefault(tag, {})[line["step"]] = fp32(line[field])
        found = event_accumulator.EventAccumulator(
            str(work / "runs"), size_guidance={event_accumulator.SCALARS: 0})
        found.Reload()
        assert found.file_version == 2, found.file_version
        assert sorted(found.Tags()["scalars"]) == sorted(expected), found.Tags()
        for tag, values in expected.items():
            got = [(point.step, point.value) for point in found.Scalars(tag)]
            assert got == sorted(values.items()), (tag, got, sorted(values.items()))
        assert [step for step, _ in sorted(expected["train/loss"].items())] == list(range(1, 21))
        print(f"tensorboard: {len(expected)} tags, 20 steps, each once, over a kill and a resume")


if __name__ == "__main__":
    main()
