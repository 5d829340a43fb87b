"""Signals to `merge` and `data tokenize` at random instants: what they write is there whole, or not at all."""
import pathlib
import shutil
import signal
import time

from runs import Failure, Process

SOURCE = pathlib.Path(__file__).resolve().parents[2]
CONFIG = ('{"model_type":"gpt2","n_layer":3,"n_embd":192,"n_head":4,"n_positions":32,'
          '"vocab_size":256}')
END_LIMIT = 90
CATCHABLE = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def run_to_end(bench, words):
    run = Process(bench, words)
    begin = time.monotonic()
    if run.end(600) != 0:
        raise Failure("an undisturbed command failed: " + run.describe())
    return time.monotonic() - begin


class Writer:
    """A command that writes into a folder of its own, and what is in there undisturbed."""

    def __init__(self, bench, name, words, marker):
        self.bench, self.name, self.words = bench, name, words
        self.marker = marker  # the file without which nobody takes the others for the result
        folder = bench.new_path("whole")
        folder.mkdir()
        self.seconds = run_to_end(bench, words(folder))
        self.whole = self.contents(folder)

    @staticmethod
    def contents(folder):
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    @staticmethod
    def left_over(folder):
        return sorted(path.name for path in folder.iterdir() if path.name.endswith(".tmp"))


def writers(bench):
    """merge and data tokenize, made ready once."""
    if "writers" in bench.references:
        return bench.references["writers"]
    config, base, lora = (bench.new_path(kind) for kind in ("model", "base", "lora"))
    config.mkdir()
    (config / "config.json").write_text(CONFIG)
    data = bench.root / "data.txt"
    train = [bench.zeroplan, "train", "--backend", "cpu", "--threads", "1", "--steps", "1", "--data", data]
    run_to_end(bench, train + ["--model", config, "--fresh-weights", "--save", base])
    (base / "tokenizer_config.json").write_text('{"eos_token":"."}')
    run_to_end(bench, train + ["--model", base, "--method", "lora", "--save", lora])

    tokenizer = bench.new_path("tokenizer")
    tokenizer.mkdir()
    shutil.copy(SOURCE / "tests" / "fixtures" / "tokenizers" / "llama3.json", tokenizer / "tokenizer.json")
    (tokenizer / "tokenizer_config.json").write_text('{"eos_token":"<|eot_id|>"}')
    text = bench.root / "text.txt"
    words = [bytes(bench.random.choices(b"abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(5000)]
    text.write_bytes(b" ".join(bench.random.choice(words) for _ in range(100_000)))
    bench.references["writers"] = [
        Writer(bench, "merge",
               lambda folder: [bench.zeroplan, "merge", lora, "-o", folder, "--save-dtype", "fp32",
                               "--max-shard-size", "1MB"],
               "config.json"),
        Writer(bench, "data tokenize",
               lambda folder: [bench.zeroplan, "data", "tokenize", text, "--tokenizer", tokenizer, "--threads", "2",
                               "-o", folder / "text.bin"],
               "text.bin"),
    ]
    return bench.references["writers"]


def attack_one(bench, table, writer, number):
    folder = bench.new_path("out")
    folder.mkdir()
    run = Process(bench, writer.words(folder))
    if bench.random.random() < 0.5:
        while run.running() and not writer.left_over(folder):
            time.sleep(0.0002)
        time.sleep(bench.random.uniform(0, writer.seconds / 4))
    else:
        time.sleep(bench.random.uniform(0, writer.seconds))
    under_way = "while it writes" if writer.left_over(folder) else "before or after"
    run.kill(number=number)
    if number == signal.SIGHUP:
        run.kill(number=number)  # as a terminal sends it
    code = run.end(END_LIMIT)
    name = signal.Signals(number).name
    there = writer.contents(folder)
    if code == 0 or writer.marker in there:
        wanted = {key: value for key, value in there.items() if not key.endswith(".tmp")}
        if wanted != writer.whole:
            raise Failure(f"{name}, exit code {code}: {sorted(there)} are not what is written undisturbed: "
                          f"{folder}\n{run.describe()}")
    elif code not in (130, -number) or (number == signal.SIGKILL and code != -number):
        raise Failure(f"{name}: exit code {code}: {run.describe()}")
    elif number != signal.SIGKILL and there:
        # Before it hears signals one ends it, and nothing is there yet.
        raise Failure(f"{name}, exit code {code}: {sorted(there)} are left in {folder}\n{run.describe()}")
    table.count(f"{writer.name}, {name}", "written whole" if code == 0 else "nothing of it taken for the result",
                under_way)
    if code == 0:
        return
    again = Process(bench, writer.words(folder))
    if writer.marker in there and writer.name == "merge":
        if again.end(END_LIMIT) != 2:  # a model is there: it is not replaced
            raise Failure(f"a merge over a whole model: {again.describe()}")
    elif again.end(END_LIMIT) != 0 or writer.contents(folder) != writer.whole:
        raise Failure(f"once more after {name}: {sorted(writer.contents(folder))} in {folder}\n{again.describe()}")
    shutil.rmtree(folder)


def attack(bench, table, count):
    """Half of them SIGKILL. Returns how many."""
    for turn in range(count):
        number = signal.SIGKILL if bench.random.random() < 0.5 else bench.random.choice(CATCHABLE)
        attack_one(bench, table, writers(bench)[turn % 2], number)
    return count
