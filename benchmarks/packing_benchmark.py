"""Tokens/s of `zeroplan train` on packed documents beside windows of a stream of the same length: documents that
fill their rows, and shorter ones, in turns, the median of several runs. Positions are counted, so that equal
lengths are compared; documents shorter than a row take less attention.

usage: packing_benchmark.py [--model MODEL] [--micro-batch N] [--seq-len N] [--lengths MEAN...] [--steps N]
       [--warmup N] [--repeat N] [--backend cuda|cpu] [--zeroplan BINARY]
"""
import argparse
import pathlib
import statistics
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
import zeroplan_run as zeroplan  # noqa: E402


def lengths_around(mean, total, longest, rng):
    """Between 0.3 and 1.7 of `mean`, in tokens, a target behind the last input included."""
    lengths = []
    while sum(lengths) < total:
        lengths.append(min(longest, max(2, int(mean * (0.3 + 1.4 * rng.random())))))
    return lengths


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="llama3.2-1b")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 256])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=50000, help="tokens are drawn from so many ids")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--zeroplan", default=zeroplan.BINARY)
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    positions = args.micro_batch * args.seq_len * (args.steps + args.warmup + 2)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        cases = {"stream": (work / "stream.bin", "stream")}
        tokens = rng.integers(args.vocab, size=positions + 1)
        zeroplan.write_tokens(cases["stream"][0], tokens)
        for mean in [args.seq_len, *args.lengths]:
            case = "one document a row" if mean == args.seq_len else f"documents of about {mean}"
            path = work / f"documents-{mean}.bin"
            lengths = ([args.seq_len + 1] * (positions // args.seq_len) if mean == args.seq_len else
                       lengths_around(mean, positions, args.seq_len, rng))
            zeroplan.write_tokens(path, rng.integers(args.vocab, size=sum(lengths)),
                                  np.concatenate([[0], np.cumsum(lengths)[:-1]]))
            cases[case] = (path, "documents")
        rates = {case: [] for case in cases}
        gib = {}
        for repetition in range(args.repeat):
            order = list(cases) if repetition % 2 == 0 else list(cases)[::-1]
            for case in order:
                path, packing = cases[case]
                run = zeroplan.train(
                    ["--model", args.model, "--fresh-weights", "--data", path, "--packing", packing,
                     "--micro-batch", args.micro_batch, "--seq-len", args.seq_len, "--stage", 0,
                     "--steps", args.steps + args.warmup, "--backend", args.backend],
                    work / "metrics.jsonl", args.zeroplan)
                steps = [step["tokens_per_second"] for step in run["steps"][args.warmup:]]
                rates[case].append(statistics.median(steps))
                planned = run["end"]["planned_arena_bytes"]
                gib[case] = planned["device"] / 2**30
    print(f"{args.model}, {args.micro_batch} x {args.seq_len}, median of {args.steps} steps x {args.repeat}")
    base = statistics.median(rates["stream"])
    for case, of_case in rates.items():
        rate = statistics.median(of_case)
        print(f"{case:26} {rate:12,.0f} tokens/s {100 * rate / base:6.1f} %  {gib[case]:6.2f} GiB planned")


if __name__ == "__main__":
    main()
