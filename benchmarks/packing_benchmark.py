"""Answers two questions. Without --chats: tokens/s of `zeroplan train` on packed documents and on windows of a stream of
the same length: documents that fill their rows, and shorter ones, in turns, the median of several runs. Positions are
counted, so that equal lengths are compared; documents shorter than a row take less attention. With --chats: what an
epoch takes over so many conversations, a median of 181 tokens: packed, padded to --seq-len, and padded to the longest of
a batch of like lengths, in batches that hold as many positions as the packed ones or as many rows. It prints measured
steps and what zeroplan predicted of them. ZEROPLAN_ATTENTION=own has both on own attention kernels.

usage: packing_benchmark.py [--chats COUNT] [--model MODEL] [--micro-batch N] [--seq-len N] [--lengths MEAN...] [--steps N]
       [--warmup N] [--repeat N] [--backend cuda|cpu] [--zeroplan BINARY]
"""
import argparse
import bisect
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


def chat_lengths(count, longest, rng):
    return np.clip(rng.lognormal(5.2, 0.6, count).astype(int), 20, longest)


def packed_rows(lengths, seq_len):
    """Best fit decreasing; a document of n tokens is n - 1 positions."""
    room = []
    for positions in sorted((n - 1 for n in lengths), reverse=True):
        at = bisect.bisect_left(room, positions)
        bisect.insort(room, (room.pop(at) if at < len(room) else seq_len) - positions)
    return len(room)


def epoch_of_chats(args, rng):
    """Prints what an epoch takes by each way of making batches of conversations."""
    lengths = chat_lengths(args.chats, args.seq_len, rng)
    tokens_a_step = args.micro_batch * args.seq_len
    like = [128, 192, 256, 384, 768, 1536]
    # (packing, positions of a row, rows of a micro-step, micro-steps)
    cases = {"packed": ("documents", args.seq_len, args.micro_batch, 1),
             "padded": ("off", args.seq_len, args.micro_batch, 1)}
    for length in like:
        rows = tokens_a_step // length
        cases[f"like lengths, {rows} x {length}"] = ("off", length, rows, 1)
        cases[f"like lengths, {args.micro_batch} x {length}"] = ("off", length, args.micro_batch, 8)
    measured, predicted = {case: [] for case in cases}, {}
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        zeroplan.write_tokens(work / "chats.bin", rng.integers(args.vocab, size=lengths.sum()),
                              np.concatenate([[0], np.cumsum(lengths)[:-1]]))
        for repetition in range(args.repeat):
            for case in list(cases) if repetition % 2 == 0 else list(cases)[::-1]:
                packing, seq_len, rows, accum = cases[case]
                run = zeroplan.train(
                    ["--model", args.model, "--fresh-weights", "--data", work / "chats.bin", "--packing", packing,
                     "--truncate", "--micro-batch", rows, "--grad-accum", accum, "--seq-len", seq_len, "--stage", 0,
                     "--lora-r", 16, "--steps", args.steps + args.warmup, "--backend", args.backend],
                    work / "metrics.jsonl", args.zeroplan)
                measured[case].append(statistics.median(s["step_seconds"] for s in run["steps"][args.warmup:]))
                predicted[case] = run["start"]["predicted"]["step_seconds"]
    rows = packed_rows(lengths, args.seq_len)
    second = {case: statistics.median(times) / (cases[case][2] * cases[case][3]) for case, times in measured.items()}

    def of_like(rows_of):
        a_row = [second[f"like lengths, {rows_of(length)} x {length}"] for length in like]
        return sum(np.interp(-(-(n - 1) // 64) * 64, like, a_row) for n in batch_lengths(lengths, 16))

    epochs = {"packed": rows * second["packed"], "padded": args.chats * second["padded"],
              "like lengths, as many positions": of_like(lambda length: tokens_a_step // length),
              "like lengths, as many rows": of_like(lambda length: args.micro_batch)}
    print(f"{args.model}, LoRA, {args.chats} conversations (median {np.median(lengths):.0f}, longest {lengths.max()} tokens), "
          f"{rows} rows of {args.seq_len} packed")
    for case, times in measured.items():
        guess = predicted[case]
        print(f"  {case:28} {1e3 * statistics.median(times):9.1f} ms a step" +
              (f", predicted {1e3 * guess:9.1f} ({100 * (guess / statistics.median(times) - 1):+.1f} %)" if guess else ""))
    for case, seconds in epochs.items():
        print(f"  an epoch, {case:32} {seconds:9.1f} s   {seconds / epochs['packed']:6.2f} times packed")


def batch_lengths(lengths, size):
    """The length of the longest in each conversation's batch, where batches are of like lengths."""
    ordered = np.sort(lengths)
    return [ordered[min(i - i % size + size, len(ordered)) - 1] for i in range(len(ordered))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--chats", type=int, default=0)
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
    if args.chats > 0:
        epoch_of_chats(args, rng)
        return
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
