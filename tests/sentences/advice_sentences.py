#!/usr/bin/env python3
"""Reads the advice of plan as a reader does, and types it back.

From the printed text alone: figures, units and direction of each sentence. The option that it is about
is given the figure at the boundary, inside and beyond, and what plan answers then is compared. A
sentence is false where an answer that is proven differs, or one that is not differs by more than the
gaps that are printed.

    advice_sentences.py BINARY [--scenarios N] [--seed S]

prints how many sentences of each kind were read and which were false; exit code 1 if any was.
"""
import argparse
import collections
import json
import math
import os
import random
import re
import shlex
import subprocess
import sys

BYTES = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
TIE = 0.004  # choices that are closer are not told apart (kTieMargin)
SIZE, RATE, BAND = r"[\d.]+ [KMGT]?B", r"[\d.]+[KMBT]?", r"[\d.]+ G[bB]/s"
CHOICE = r"(.+? \(.+?\)|stage \d)"
WITHIN = r"(?: \(not proven: within ([\d.]+) %\))?"


def size(text):
    value, unit = text.split()
    return round(float(value) * BYTES[unit])


def count_text(count):
    """As FormatCount prints it: three digits."""
    if count < 1000:
        return str(int(count))
    for unit in "KMBT":
        count /= 1000
        if count < 999.5:
            return ("%.2f" if count < 9.995 else "%.1f" if count < 99.95 else "%.0f") % count + unit
    raise ValueError(count)


def rate_text(rate):
    return count_text(math.floor(rate + 0.5))


def near_rate(text, rate):
    """Whether `rate` prints as `text`, but for what two sums of the same terms may differ by."""
    return text in {rate_text(rate * (1 + e)) for e in (-1e-6, 0, 1e-6)}


def percent_near(text, share):
    """Whether a share prints as `text`: two digits, whole from 10 % on."""
    digits = 1 if float(text) < 10 else 0
    last = 10.0 ** (math.floor(math.log10(float(text))) - digits) if float(text) > 0 else 0.01
    if float(text) >= 10:
        last = 1
    return abs(100 * share - float(text)) <= 0.51 * last + 1e-9


def label(choice):
    """A choice without its batch: "stage 2, full recompute"."""
    return re.sub(r" \((?:micro-batch|no |\d).*\)$", "", choice)


def kind(name):
    """A choice's kind by which ranges differ: without shares, segments and numbers of layers."""
    name = re.sub(r"\d+ % of the optimizer", "optimizer", label(name))
    name = name.replace("optimizer on cpu, parameters on cpu", "optimizer and parameters on cpu")
    name = re.sub(r"recompute by \d+ layers", "full recompute", name)
    return re.sub(r" of \d+ layers", " of some layers", name)


class Answer:
    """The answer of plan; `found` is False if nothing fits."""

    def __init__(self, data):
        self.found = data is not None
        if not self.found:
            self.gap, self.rate = 0, 0
            return
        self.gap = data["gap"]
        self.rate = data["predicted"]["tokens_per_second"]
        self.gpu_bytes = data["predicted"]["gpu_bytes"]["total"]
        self.gpus = data["choice"]["gpus"]
        self.stage = data["choice"]["stage"]
        self.group = data["choice"]["shard_group"] if data["choice"]["shard_group"] < self.gpus else 0
        self.batch = data["choice"]["global_batch"]
        self.lines = data["advice"]
        chosen = next(line for line in self.lines if line.startswith("Chosen"))
        self.label = re.match(r"Chosen(?: for [\w-]+)?: (.*?), micro-batch", chosen)[1]
        self.kind = kind(self.label)
        self.chosen = chosen


class Reader:
    def __init__(self, binary, random_, tally, wrong):
        self.binary, self.random, self.tally, self.wrong = binary, random_, tally, wrong
        self.runs = 0

    def run(self, options, *more):
        self.runs += 1
        words = ["plan"] + [w for k, v in options.items() for w in (k, v)] + list(more)
        environment = dict(os.environ, ZEROPLAN_NO_DETECT="1", HF_HUB_CACHE="/nonexistent")
        done = subprocess.run([self.binary] + words, capture_output=True, text=True, env=environment)
        return done

    def plan(self, options, *more):
        done = self.run(options, "--format", "json", *more)
        if done.returncode == 3:
            return Answer(None)
        if done.returncode == 2:
            return None  # refused: the reserve takes all of it
        assert done.returncode == 0, done.stderr
        return Answer(json.loads(done.stdout))

    def typed(self, **changed):
        options = dict(self.options)
        for name, value in changed.items():
            option = "--" + name.replace("_", "-")
            options[option] = value
            if option == "--global-batch":
                options.pop("--global-batch-tokens", None)
        key = tuple(options.items())
        if key not in self.known:
            self.known[key] = self.plan(options, "--quick")
        return self.known[key]

    def false(self, sentence, why):
        self.wrong.append((" ".join(f"{k} {shlex.quote(v)}" for k, v in self.options.items()), sentence, why))

    def scenario(self, options):
        """Reads all of a plan's advice; whether there was a plan."""
        self.options, self.known = options, {}
        done = self.run(options, "--format", "json")
        if done.returncode == 3:
            self.nothing_fits(done.stderr)
            return True
        if done.returncode != 0:
            return False
        self.data = json.loads(done.stdout)
        self.now = Answer(self.data)
        self.present = self.data["cluster"]["gpu_capacity_bytes"]
        for line in self.now.lines:
            self.read(line)
        return True

    def read(self, line):
        for name, pattern, check in SENTENCES:
            match = re.match(pattern, line)
            if match:
                self.tally[name] += 1
                check(self, line, *match.groups())
                return

    # ---- what answers are compared by ----

    def same_choice(self, line, typed, choice, rate, gap, what):
        """The choice and rate that are printed for a change are those that it has."""
        if typed is None:
            return
        if not typed.found:
            return self.false(line, f"{what}: nothing fits")
        proven = gap is None and typed.gap == 0
        if proven and typed.label != label(choice):
            self.false(line, f"{what}: {typed.label}")
        if not proven:
            slack = float(gap or 0) / 100 + typed.gap + TIE + 0.006
            if abs(typed.rate / number(rate) - 1) > slack:
                self.false(line, f"{what}: {rate_text(typed.rate)} tokens/s")
        elif not near_rate(rate, typed.rate):
            self.false(line, f"{what}: {rate_text(typed.rate)} tokens/s")

    def has_kind(self, line, typed, name, what, proven=True):
        if typed is None:
            return
        if not typed.found:
            return self.false(line, f"{what}: nothing fits")
        if typed.kind != name and typed.gap == 0 and proven:
            self.false(line, f"{what}: {typed.kind}")

    def memory(self, value):
        return self.typed(gpu_memory=str(value))

    def inside(self, low, high):
        low = max(low, high // 1000)
        return int(low * (high / low) ** self.random.random())

    # ---- memory ----

    def memory_stays(self, line, low, high, down, up, name):
        first = size(low or down) if low or down else self.present
        last = size(high or up) if high or up else self.present
        for value in (first, self.inside(first, last), last):
            self.has_kind(line, self.memory(value), name, f"at {value} B")

    def memory_range(self, line, low, high, name, _, end, choice, rate, gap):
        low, high = size(low), size(high)
        for value in (low, self.inside(low, high), high):
            self.has_kind(line, self.memory(value), name, f"at {value} B")
        if end:
            self.same_choice(line, self.memory(size(end)), choice, rate, gap, f"at {end}")
        # Beyond the near end another kind begins.
        near = low if low > self.present else high
        unit = 10 ** max(0, len(str(near)) - 4)
        beyond = self.memory(near - unit if near == low else near + unit)
        if beyond is not None and beyond.found and beyond.gap == 0 and beyond.kind == name:
            self.false(line, "the same kind beyond its near end")

    def memory_least(self, line, high):
        high = size(high)
        unit = 10 ** max(0, len(str(high)) - 4)
        at, beyond = self.memory(high), self.memory(high + unit)
        if at is not None and at.found:
            self.false(line, f"at {high} B something fits")
        if beyond is not None and not beyond.found:
            self.false(line, f"at {high + unit} B nothing fits")

    def memory_at(self, line, at, choice, rate, gap):
        self.same_choice(line, self.memory(size(at)), choice, rate, gap, f"at {at}")

    def memory_gain(self, line, gain, times, choice, rate, gap):
        typed = self.memory(int(times) * self.present)
        self.same_choice(line, typed, choice, rate, gap, f"{times} times the memory")
        if typed and gap is None and typed.gap == 0 and not percent_near(gain, typed.rate / self.now.rate - 1):
            self.false(line, f"gains {100 * (typed.rate / self.now.rate - 1):.3g} %")

    def memory_nothing(self, line, times, gap):
        typed = self.memory(int(times) * self.present)
        gain = typed.rate / self.now.rate - 1
        if gain > 0.0005 + float(gap or 0) / 100 + typed.gap + self.now.gap:
            self.false(line, f"gains {100 * gain:.3g} %")

    # ---- batches ----

    def batch_stays(self, line, low, high, name, slowest, fastest, gap):
        low, high = int(low), int(high)
        values = [low]
        while values[-1] * 2 <= high:
            values.append(values[-1] * 2)
        picked = {low, high, self.random.choice(values)}
        for value in sorted(picked):
            typed = self.typed(global_batch=str(value))
            self.has_kind(line, typed, name, f"with {value} sequences", proven=gap is None)
            if typed and typed.found and typed.gap == 0 and gap is None:
                least, most = number(slowest) * 0.994, number(fastest) * 1.006
                if not least <= typed.rate <= most:
                    self.false(line, f"with {value} sequences {rate_text(typed.rate)} tokens/s")

    def batch_other(self, line, sequences, choice, rate, gap):
        self.same_choice(line, self.typed(global_batch=sequences), choice, rate, gap, f"with {sequences}")

    def batch_faster(self, line, *_):
        pattern = (r"With (\d+) sequences a step \((" + RATE + r") tokens\) .*? (?:are|is) ([\d.]+) times as fast: ("
                   + RATE + r") tokens/s, " + CHOICE + WITHIN + r"; --global-batch (\d+)")
        for sequences, _, times, rate, choice, gap, option in re.findall(pattern, line):
            typed = self.typed(global_batch=option)
            self.same_choice(line, typed, choice, rate, gap or None, f"with {sequences}")
            if typed.rate / self.now.rate < float(times) - 1e-9 and not gap and self.now.gap == 0:
                self.false(line, f"{typed.rate / self.now.rate:.3f} times as fast")

    def fewer(self, line, *_):
        pattern = (r"(\d+) GPUs?(?: of [\w ]+?)? (?:are|is) (?:([\d.]+) times )?as fast as these \d+: (" + RATE +
                   r") tokens/s, " + CHOICE + WITHIN)
        for gpus, times, rate, choice, gap in re.findall(pattern, line):
            typed = self.typed(gpus=gpus)
            self.same_choice(line, typed, choice, rate, gap or None, f"on {gpus} GPUs")
            if not gap and typed.rate / self.now.rate < float(times or 1 / (1 + TIE)) - 1e-9:
                self.false(line, f"{typed.rate / self.now.rate:.3f} times as fast")

    # ---- bandwidths ----

    def band(self, text):
        network = text.endswith("Gb/s")
        return self.typed(**{"network" if network else "intra_node_bandwidth": text.replace(" ", "")})

    def sharding(self, answer, text):
        if text.startswith("is stage") or text.startswith("stage"):
            return answer.stage == int(re.search(r"stage (\d)", text)[1])
        group = re.search(r"shard groups of (\d+)", text)
        return answer.group == (int(group[1]) if group else 0)

    def rates(self, line, low, high, what, gap):
        unit = low.split()[1]
        first, last = float(low.split()[0]), float(high.split()[0])
        values = [first, last]
        if last > 2.2 * first:
            values.append(float("%.3g" % math.exp(self.random.uniform(math.log(first), math.log(last)))))
        for value in values:
            end = value in (first, last)
            typed = self.band(f"{value:g} {unit}")
            if typed.found and not self.sharding(typed, what):
                # Rates between two that were looked at are not claimed one by one, but nor may another
                # answer be much better there.
                if end and (typed.gap == 0 and gap is None):
                    self.false(line, f"at {value:g} {unit}: {typed.label}")
                elif end and float(gap or 0) == 0 and typed.gap <= 0.03:
                    self.false(line, f"at {value:g} {unit}: {typed.label}")
                else:
                    self.tally["(between two rates, or within a gap: another)"] += 1

    def crossover(self, line, low, high, what, _, end, choice, rate, gap):
        if gap is not None and float(gap) > 3:
            self.false(line, "a gap of more than 3 % is no crossover")
        self.rates(line, low, high, what, gap)
        self.same_choice(line, self.band(end), choice, rate, gap, f"at {end}")
        now = re.search(r"; now (" + BAND + ")", line)[1]
        unit, present = now.split()[1], float(now.split()[0])
        first, last = float(low.split()[0]), float(high.split()[0])
        if first <= present <= last or f"between {end}" in line or f" and {end} not proven" in line:
            return
        near = last if last < present else first
        for factor in (1.01, 1.02, 1.03):
            typed = self.band("%.3g %s" % (near * factor if near == last else near / factor, unit))
            if not self.sharding(typed, what) or typed.gap > 0 or gap is not None:
                return
        self.false(line, "the same answer 3 % beyond")

    def no_crossover(self, line, where, what, gap):
        if gap is not None and float(gap) > 3:
            self.false(line, "a gap of more than 3 % proves no absence")
        for low, high in re.findall("from (" + BAND + ") to (" + BAND + ")", where):
            self.rates(line, low, high, what, gap)

    # ---- stages ----

    def stage_loss(self, line, about, choice, percent, direction, rest):
        stage = re.search(r"[Ss]tage (\d)", choice)[1]
        typed = self.typed(stage=stage)
        if not typed.found:
            return self.false(line, "nothing of it fits")
        share = self.now.rate / typed.rate - 1 if direction == "slower" else typed.rate / self.now.rate - 1
        exact = not about and typed.gap == 0 and self.now.gap == 0
        if exact and not percent_near(percent, share):
            self.false(line, f"{100 * share:.3g} % {direction}")
        more = [float(x) for x in re.findall(r"\(\+([\d.]+) % of a step\)", rest)]
        less = [float(x) for x in re.findall(r"\(-([\d.]+) % of a step\)", rest)]
        if more and direction == "slower" and not less and sum(more) > float(percent) * 1.06 + 0.06:
            self.false(line, "its reasons are larger than its loss")
        if less and sum(more) <= float(percent) * 0.94 - 0.06:
            self.false(line, "nothing was to be offset")
        if direction == "faster" and more:
            self.false(line, "reasons to be slower of what is faster")

    def stage_from(self, line, stage, least):
        least = size(least)
        unit = 10 ** max(0, len(str(least)) - 4)
        at = self.typed(stage=stage, gpu_memory=str(least))
        below = self.typed(stage=stage, gpu_memory=str(least - unit))
        if at is not None and not at.found:
            self.false(line, f"at {least} B it does not fit")
        if below is not None and below.found:
            self.false(line, f"at {least - unit} B it fits")

    def chosen(self, line, label_, gpus, rate, each):
        if not near_rate(rate, self.now.rate) or not near_rate(each, self.now.rate / int(gpus)):
            self.false(line, f"{self.now.rate} tokens/s")
        table = self.run(self.options, "--quick").stdout
        row = re.search(r"^> .*$", table, re.M)
        if row is None or rate not in row[0].split():
            self.false(line, f"the table has {row and row[0]}")

    # ---- nothing fits ----

    def nothing_fits(self, error):
        match = re.search(r"smallest change that fits: (--.*?) \((.*); (" + SIZE + r") a GPU, (\d+) tokens/s\)", error)
        if not match:
            self.tally["(nothing fits, and no change was found)"] += 1
            return
        self.tally["smallest change"] += 1
        words, name, takes, rate = match.groups()
        words, _, without = words.partition(" without ")
        options = dict(self.options)
        for option in re.findall(r"--[\w-]+", without):
            options.pop(option, None)
        flags = []
        for option, value in re.findall(r"(--[\w-]+)(?: (?!--)(\S+))?", words):
            if value:
                options[option] = value
            else:
                flags.append(option)
        typed = self.plan(options, "--quick", *flags)
        if typed is None or not typed.found:
            return self.false(error.split("\n")[0], "typed, it does not fit")
        if typed.gap == 0 and typed.rate < float(rate) * 0.995:
            self.false(error.split("\n")[0], f"typed, {typed.rate:.0f} tokens/s")


def number(text):
    units = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    return float(text.rstrip("KMBT")) * units.get(text[-1], 1)


KIND = r"(.+?)"
SENTENCES = [
    ("rates of the answer", r"Chosen: (.*?), micro-batch .* on (\d+) GPUs?: .* a step, (" + RATE + r") tokens/s \((" + RATE +
     r") tokens/s a GPU\)", Reader.chosen),
    ("memory where it stays", r"(?:From (" + SIZE + ") to (" + SIZE + r")|With less memory, down to (" + SIZE +
     r")|With more memory, up to (" + SIZE + r")) a GPU " + KIND + r" stays the answer\.$", Reader.memory_stays),
    ("memory of another kind", r"From (" + SIZE + ") to (" + SIZE + r") a GPU the answer is (?!changes)" + KIND + r"(; at (" + SIZE +
     r") it is " + CHOICE + r", (" + RATE + r") tokens/s" + WITHIN + r")?\.$", Reader.memory_range),
    ("memory where nothing fits", r"Up to (" + SIZE + r") a GPU nothing fits\.$", Reader.memory_least),
    ("single memories", r"With (" + SIZE + r") a GPU the answer is " + CHOICE + ", (" + RATE + r") tokens/s" + WITHIN + r"\.$",
     Reader.memory_at),
    ("gain of more memory", r"More GPU memory would gain ([\d.]+) %, with (\d+) times as much: " + CHOICE + ", (" + RATE +
     r") tokens/s" + WITHIN + r"\.$", Reader.memory_gain),
    ("no gain of more memory", r"More GPU memory \(up to (\d+) times\) would gain nothing" + WITHIN + r"\.$", Reader.memory_nothing),
    ("batches where it stays", r"From (\d+) to (\d+) sequences a step, looked at by doubling, " + KIND +
     r" stays the answer, with (" + RATE + ") to (" + RATE + r") tokens/s" + WITHIN + r"\.$", Reader.batch_stays),
    ("another batch", r"With (\d+) sequences? a step the answer is " + CHOICE + ", (" + RATE + r") tokens/s" + WITHIN + r"\.$",
     Reader.batch_other),
    ("a faster batch", r"(With \d+ sequences a step \(.* tokens\))", Reader.batch_faster),
    ("fewer GPUs", r"(\d+ GPUs?.* as these \d+:)", Reader.fewer),
    ("crossovers", r"Crossover .*?: from (" + BAND + ") to (" + BAND + r") the answer (is stage \d|has .*?)(; at (" + BAND +
     r") it is " + CHOICE + r", (" + RATE + r") tokens/s" + WITHIN + ")", Reader.crossover),
    ("no crossover", r"No crossover .*?: ((?:from .*? to .*?)+), looked at by doubling, (.*?)" + WITHIN + r"[;.]",
     Reader.no_crossover),
    ("memory from which a stage fits", r"Stage (\d) does not fit.*\. It fits from (" + SIZE + ") a GPU on", Reader.stage_from),
    ("losses of stages", r"(About: )?([Ss]tage \d.*?\)): ([\d.]+) % (slower|faster)(.*)$", Reader.stage_loss),
]

MODELS = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-1.3b", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b",
          "llama3.2-1b", "llama2-7b", "qwen2.5-0.5b"]
MACHINES = {"hgx-h200": 8, "dgx-h100": 8, "dgx-a100-40gb": 8, "dgx-2": 16, "8x-a100-80gb-pcie": 8, "4x-rtx4090": 4, "8x-l40s": 8,
            "p4d-24xlarge": 8}

# Read before the random ones: the answer changes at the far end of the bandwidths alone; nothing fits.
FIXED = [
    {"--model": "gpt3-13b", "--hw": "p4d-24xlarge", "--gpus": "16", "--network": "100Gb"},
    {"--model": "gpt2-xl", "--hw": "rtx4090", "--gpus": "1", "--gpu-memory": "6GB", "--offload-optimizer": "none",
     "--offload-param": "none"},
]


def draw(random_):
    machine = random_.choice(list(MACHINES))
    several = machine in ("hgx-h200", "dgx-h100", "dgx-a100-40gb", "p4d-24xlarge")
    gpus = random_.choice([1, 2, 4, 8, 16, 32, 64])
    gpus = gpus if several else min(gpus, MACHINES[machine])
    options = {"--model": random_.choice(MODELS), "--hw": machine, "--gpus": str(gpus),
               "--seq-len": random_.choice(["512", "1024"])}
    if random_.random() < 0.33:
        options["--global-batch"] = str(gpus * random_.choice([1, 4, 8, 16]))
    if random_.random() < 0.4:
        options["--gpu-memory"] = random_.choice(["6GB", "10GB", "16GB", "24GB"])
    if random_.random() < 0.33:
        options["--offload-optimizer"] = options["--offload-param"] = "none"
    return options


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--scenarios", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tally, wrong, done, runs, seed = collections.Counter(), [], 0, 0, arguments.seed
    for options in FIXED:
        reader = Reader(arguments.binary, random.Random(seed), tally, wrong)
        assert reader.scenario(options)
        runs += reader.runs
    while done < arguments.scenarios:
        random_ = random.Random(seed)
        reader = Reader(arguments.binary, random_, tally, wrong)
        done += reader.scenario(draw(random_))
        runs += reader.runs
        seed += 1
    print(f"seeds {arguments.seed} to {seed - 1}: {done} scenarios and {len(FIXED)} fixed ones, {runs} plans")
    for name, count in sorted(tally.items()):
        print(f"{count:6} {name}")
    read = sum(count for name, count in tally.items() if not name.startswith("("))
    for options, sentence, why in wrong:
        print(f"FALSE: zeroplan plan {options}\n  {sentence}\n  {why}")
    print(f"{read} sentences read, {len(wrong)} false")
    return 1 if wrong or read == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
