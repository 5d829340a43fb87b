#!/usr/bin/env python3
"""Stages and shard groups on the GPUs of one host, over peer access and over sockets, beside their
prediction.

    python3 benchmarks/links_and_groups.py --gpus 2 4
    python3 benchmarks/links_and_groups.py --gpus 2 --links sockets --model gpt2-medium

For each number of GPUs and kind of link NCCL is held to it, its collectives are measured
(`zeroplan hw measure --only runtime,collectives`), and then each choice trains for some steps on
random text with that profile. `train` ends with its predicted and its median step, which are printed.
Exit code 1 if a run failed. Standard library only.
"""
import argparse
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What holds NCCL to sockets on one host.
LINKS = {
    "peer": {},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket",
                "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"},
}
STEP = re.compile(r"^step +([0-9.]+) s +([0-9.]+) s", re.M)


def choices(gpus):
    """Options of each choice: stages over all ranks, and groups of half of them."""
    of_all = [f"--stage {stage}" for stage in range(4)]
    if gpus < 4:
        return of_all
    group = f"--shard-group {gpus // 2}"
    grouped = [f"--stage {stage} {group} --across-groups {across}"
               for stage in (1, 2, 3) for across in ("replicate", "optimizer", "gradients")
               if (stage, across) != (1, "gradients")]
    return of_all + grouped


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--zeroplan", default=ROOT / "build/release/zeroplan")
    parser.add_argument("--gpus", type=int, nargs="+", default=[2])
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--model", default="gpt2-large")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", default="--micro-batch 4 --grad-accum 2")
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder, "text.txt")
        draw = random.Random(1)
        text.write_text("".join(draw.choices("abcdefghij klmnop\n", k=6_000_000)))
        for gpus in args.gpus:
            for link in args.links:
                env = {**os.environ, "NCCL_NVLS_ENABLE": "0", **LINKS[link]}
                profile = pathlib.Path(folder, f"{link}-{gpus}.json")
                subprocess.run([args.zeroplan, "hw", "measure", "--only", "runtime,collectives",
                                "--gpus", str(gpus), "-o", profile],
                               check=True, env=env, stderr=subprocess.DEVNULL)
                for choice in choices(gpus):
                    run = subprocess.run(
                        [args.zeroplan, "train", "--hw", profile, "--gpus", str(gpus), "--model",
                         args.model, "--data", text, "--steps", str(args.steps), "--dtype", "bf16",
                         *args.batch.split(), *choice.split()],
                        env=env, capture_output=True, text=True)
                    found = STEP.search(run.stdout + run.stderr)
                    if run.returncode != 0 or not found:
                        print(f"{gpus} GPUs, {link}, {choice}: failed\n{run.stderr[-2000:]}")
                        failed = True
                        continue
                    predicted, measured = map(float, found.groups())
                    print(f"{gpus} GPUs, {link}, {choice}: predicted {predicted:.3f} s, "
                          f"measured {measured:.3f} s ({measured / predicted - 1:+.1%})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
