"""100 plans in a loop from Python beside 100 runs of the program, on hardware that is no part of this
machine. Run it with the Python that zeroplan was installed into, alone on the machine:

    pip install . && python benchmarks/python_plans.py [PLANS]

Models, GPUs and memory change from plan to plan, so that nothing is asked twice in a row; both sides get
the same questions, and their answers are compared. Python's time does not have its start, which is once.
"""

import itertools
import json
import os
import subprocess
import sys
import time

import zeroplan

PROGRAM = os.path.join(os.path.dirname(sys.executable), "zeroplan")


def questions(count):
    models = ("gpt2", "gpt2-xl", "gpt3-6.7b", "llama3.1-8b")
    every = itertools.cycle(itertools.product((1, 2, 8), ("16GB", "24GB", "40GB"), models))
    asked = []
    while len(asked) < count:
        gpus, memory, model = next(every)
        options = {"model": model, "gpus": gpus, "gpu_memory": memory, "hw": "dgx-a100-40gb",
                   "seq_len": 1024}
        asked.append(options)
    return asked


def from_python(options):
    try:
        return zeroplan.plan(**options).to_dict()
    except zeroplan.NothingFits as nothing:
        return str(nothing)


def from_program(options):
    words = [PROGRAM, "plan", "--format", "json"]
    for name, value in options.items():
        words += ["--" + name.replace("_", "-"), str(value)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode == 3:
        return done.stderr[len("zeroplan: "):-1]
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def timed(ask, asked):
    start = time.perf_counter()
    answers = [ask(options) for options in asked]
    return time.perf_counter() - start, answers


def without_clock(answer):
    if isinstance(answer, dict):
        del answer["search"]["seconds"]
    return answer


def main():
    asked = questions(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
    for _ in range(2):
        ours, answers = timed(from_python, asked)
        programs, others = timed(from_program, asked)
        differ = sum(without_clock(a) != without_clock(b) for a, b in zip(answers, others))
        print(f"{len(asked)} plans: {ours:.2f} s from Python, {programs:.2f} s by the program; "
              f"{differ} answers differ")


if __name__ == "__main__":
    main()
