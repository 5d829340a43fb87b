#!/usr/bin/env python3
"""Stages and shard groups on the GPUs of one host, over peer access and over sockets, beside their
prediction.

    python3 benchmarks/links_and_groups.py --gpus 2 4
    python3 benchmarks/links_and_groups.py --gpus 2 --links sockets --model gpt2-medium
    python3 benchmarks/links_and_groups.py --gpus 4 --links hosts

For each number of GPUs and kind of link NCCL is held to it, its collectives are measured
(`zeroplan hw measure --only runtime,collectives,network`), and then each choice trains for some steps
on random text with that profile. `train` ends with its predicted and its median step, which are
printed. `hosts`: each half of the GPUs is a host of its own to NCCL, which goes through sockets
between the two, and what `plan` takes of all choices is printed first. Exit code 1 if a run failed.
Standard library only.
"""
import argparse
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
# What holds NCCL to sockets on one host.
LINKS = {
    "peer": {},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket",
                "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"},
    "hosts": {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"},
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


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(command, gpus, link):
    """(exit code, what it printed) of the command with so many ranks."""
    env = {**os.environ, "NCCL_NVLS_ENABLE": "0", **LINKS[link]}
    command = list(map(str, command))
    if link != "hosts":
        done = subprocess.run([*command, "--gpus", str(gpus)], env=env, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
    of_host, port, ranks = gpus // 2, str(free_port()), []
    for rank in range(gpus):
        host, local = divmod(rank, of_host)
        place = {"RANK": rank, "WORLD_SIZE": gpus, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": of_host,
                 "ADDRESS": "127.0.0.1", "PORT": port}
        own = {**{f"ZEROPLAN_{name}": str(value) for name, value in place.items()},
               "NCCL_HOSTID": f"host{host}",
               "CUDA_VISIBLE_DEVICES": ",".join(visible[host * of_host:(host + 1) * of_host])}
        ranks.append(subprocess.Popen(command, env={**env, **own}, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True))
    outputs = [rank.communicate()[0] for rank in ranks]
    return max(rank.returncode for rank in ranks), outputs[0]


def planned(args, profile, gpus):
    """What plan takes of the choices, in its own words."""
    done = subprocess.run(
        [args.zeroplan, "plan", "--hw", profile, "--gpus", str(gpus), "--model", args.model, "--dtype",
         "bf16", "--stage", "1,2,3", *args.batch.split(), "--offload-optimizer", "none",
         "--offload-param", "none", "--checkpointing", "none"],
        env={**os.environ, "ZEROPLAN_NO_DETECT": "1"}, capture_output=True, text=True)
    return next((line for line in done.stdout.splitlines() if line.startswith("Chosen")), done.stderr)


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
                profile = pathlib.Path(folder, f"{link}-{gpus}.json")
                network = ",network" if link == "hosts" else ""
                code, said = run([args.zeroplan, "hw", "measure", "--only",
                                  f"runtime,collectives{network}", "-o", profile], gpus, link)
                if code != 0:
                    sys.exit(f"hw measure: {said}")
                if link == "hosts":
                    found = re.search(r"^ *\d+ hosts: .*$", said, re.M)
                    print(f"{gpus} GPUs, {found.group().strip()}\n{planned(args, profile, gpus)}",
                          flush=True)
                for choice in choices(gpus):
                    code, said = run(
                        [args.zeroplan, "train", "--hw", profile, "--model", args.model, "--data", text,
                         "--steps", args.steps, "--dtype", "bf16", *args.batch.split(),
                         *choice.split()], gpus, link)
                    found = STEP.search(said)
                    if code != 0 or not found:
                        print(f"{gpus} GPUs, {link}, {choice}: failed\n{said[-2000:]}")
                        failed = True
                        continue
                    predicted, measured = map(float, found.groups())
                    print(f"{gpus} GPUs, {link}, {choice}: predicted {predicted:.3f} s, "
                          f"measured {measured:.3f} s ({measured / predicted - 1:+.1%})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
