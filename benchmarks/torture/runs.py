"""Runs of the torture bench: how they are started, watched and compared."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

CONFIG = ('{"model_type":"gpt2","n_layer":2,"n_embd":32,"n_head":2,"n_positions":32,'
          '"vocab_size":256}')

# Stage and offload of the runs that are attacked. {swap} becomes a folder.
NVME = " --nvme-path {swap}"
CHOICES = [
    "--stage 0",
    "--stage 1",
    "--stage 1 --offload-optimizer cpu",
    "--stage 1 --offload-optimizer nvme" + NVME,
    "--stage 2",
    "--stage 2 --offload-optimizer cpu",
    "--stage 2 --offload-optimizer nvme" + NVME,
    "--stage 3",
    "--stage 3 --offload-optimizer cpu",
    "--stage 3 --offload-param cpu --offload-optimizer cpu",
    "--stage 3 --offload-param nvme --offload-optimizer nvme" + NVME,
]


class Failure(Exception):
    """A run did not survive an attack as it should."""


def children_of(pid):
    """Processes that `pid` has started and that still run."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            text = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text()
            found += [int(word) for word in text.split()]
    except OSError:
        pass
    return found


def rank_of(pid):
    """The ZEROPLAN_RANK in a process's environment; None without one."""
    try:
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for variable in environment:
        if variable.startswith(b"ZEROPLAN_RANK="):
            return int(variable.split(b"=")[1])
    return None


def alive(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rsplit(")", 1)[1].split()[0] not in "ZX"


class Process:
    """A command in the background, with what it prints."""

    def __init__(self, bench, words, environment=None, prefix=()):
        self.bench = bench
        self.log = bench.new_path("log")
        self.words = [str(word) for word in list(prefix) + list(words)]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log,
                                            env={**os.environ, "ZEROPLAN_NO_DETECT": "1",
                                                 **(environment or {})})
        self.pid = self.process.pid
        bench.started.append(self)

    def running(self):
        return self.process.poll() is None

    def kill(self, pid=None, number=signal.SIGKILL):
        try:
            os.kill(pid or self.pid, number)
        except ProcessLookupError:
            pass

    def end(self, seconds):
        """The exit code, -SIGNAL if one has ended it. It has so many seconds, where deadlines count."""
        try:
            code = self.process.wait(self.bench.limit(seconds))
        except subprocess.TimeoutExpired:
            raise Failure(f"still there after {seconds:.0f} s: {self.describe()}") from None
        if self in self.bench.started:
            self.bench.started.remove(self)
        return code

    def text(self):
        return self.log.read_text(errors="replace")

    def describe(self):
        return " ".join(self.words) + "\n" + self.text()[-2000:]


class Folder:
    """What a run saves into."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.checkpoints = self.path / "checkpoints"

    def saving(self):
        """Whether a save is under way (or one that was killed has left something)."""
        try:
            return any(name.startswith(".tmp-step") for name in os.listdir(self.checkpoints))
        except OSError:
            return False

    def exporting(self):
        try:
            return any(".tmp" in name for name in os.listdir(self.path))
        except OSError:
            return False

    def latest(self):
        """The step that `latest` names; 0 if there is none yet."""
        try:
            text = (self.checkpoints / "latest").read_text()
        except OSError:
            return 0
        return step_of(text)

    def digest(self):
        """Of all that a run ends with: final weights, and of the last checkpoint every state of
        every shard, without the headers, which name the save."""
        digest = hashlib.sha256()
        weights = self.path / "model.safetensors"
        if weights.exists():
            digest.update(weights.read_bytes())
        newest = self.checkpoints / (self.checkpoints / "latest").read_text().strip()
        meta = json.loads((newest / "meta.json").read_text())
        digest.update(json.dumps([meta[key] for key in
                                  ("step", "samples_consumed", "seed", "state")]).encode())
        for shard in sorted(newest.glob("rank-*.safetensors")):
            data = shard.read_bytes()
            digest.update(data[8 + int.from_bytes(data[:8], "little"):])
        return digest.hexdigest()


def step_of(text):
    match = re.search(r"step-(\d+)", text)
    return int(match.group(1)) if match else 0


class Bench:
    """Where runs lie and what they are started with."""

    def __init__(self, args, random, root):
        self.args = args
        self.random = random
        self.root = pathlib.Path(root)
        self.build = pathlib.Path(args.build).resolve()
        self.zeroplan = self.build / "zeroplan"
        self.ranks_program = self.build / "torture" / "torture_rank"
        self.shim = self.build / "fake_io" / "libfake_io.so"
        self.clock = self.build / "torture" / "libfake_clock.so"
        self.count = 0
        self.started = []
        self.references = {}
        (self.root / "config.json").write_text(CONFIG)
        help_text = subprocess.run([self.zeroplan, "train", "--help"], capture_output=True).stdout
        self.saves_beside_steps = b"--async-save" in help_text
        # Bytes are tokens.
        data = bytes(self.random.choice(b"abcdefghijklmnopqrstuvwxyz \n") for _ in range(12_000))
        (self.root / "data.txt").write_bytes(data)

    def limit(self, seconds):
        """So many, or None (for ever) where deadlines do not count."""
        return seconds if self.args.deadlines else None

    def new_path(self, kind):
        self.count += 1
        return self.root / f"{kind}-{self.count}"

    def new_folder(self, source=None):
        path = self.new_path("save")
        if source is not None:
            shutil.copytree(source.path, path)
        return Folder(path)

    def clean(self, folder):
        """What a survived attack leaves is not worth its room."""
        shutil.rmtree(folder.path, ignore_errors=True)
        for log in self.root.glob("log-*"):
            log.unlink()
        for cache in self.root.glob("cache-*"):
            shutil.rmtree(cache)

    def end_all(self):
        for process in list(self.started):
            for child in children_of(process.pid):
                process.kill(child, signal.SIGCONT)
                process.kill(child)
            process.kill(number=signal.SIGCONT)
            process.kill()
            process.process.wait()

    # ---- zeroplan train ----

    def train_words(self, choice, folder, steps, every, more=()):
        swap = self.root / "swap"
        swap.mkdir(exist_ok=True)
        words = [self.zeroplan, "train", "--model", self.root / "config.json", "--data",
                 self.root / "data.txt", "--lr", "3e-3", "--steps", steps, "--save-every", every,
                 "--save", folder.path]
        if self.args.backend == "cuda":
            words += ["--backend", "cuda", "--deterministic"]
        else:
            words += ["--backend", "cpu", "--threads", "1"]
        if self.saves_beside_steps:
            words += ["--async-save", self.random.choice(["on", "off"])]
        return words + choice.format(swap=swap).split() + list(more)

    def train(self, choice, folder, steps, every, more=(), environment=None, prefix=()):
        """Each run as on a machine of its own: what others have timed must not matter."""
        environment = {"ZEROPLAN_CACHE_DIR": str(self.new_path("cache")), **(environment or {})}
        return Process(self, self.train_words(choice, folder, steps, every, more), environment,
                       prefix)

    def reference(self, choice, steps, every):
        """Digest, seconds and folder of an undisturbed run."""
        key = (choice, steps, every)
        if key not in self.references:
            folder = self.new_folder()
            begin = time.monotonic()
            run = self.train(choice, folder, steps, every)
            if run.end(600) != 0:
                raise Failure("an undisturbed run failed: " + run.describe())
            self.references[key] = (folder.digest(), time.monotonic() - begin, folder)
        return self.references[key]

    def verify(self, folder):
        """Exit code of `checkpoint verify`, the step that --resume takes, and what was said."""
        run = Process(self, [self.zeroplan, "checkpoint", "verify", folder.path])
        code = run.end(60)
        match = re.search(r"--resume takes (\S+)", run.text())
        return code, step_of(match.group(1)) if match else 0, run.text()

    def check_nothing_lost(self, folder, committed):
        """The newest checkpoint before the attack, or a newer one, is intact."""
        if not folder.checkpoints.is_dir():
            if committed:
                raise Failure(f"{folder.checkpoints} is gone")
            return
        code, newest, text = self.verify(folder)
        if committed == 0 and newest == 0:
            return  # nothing was saved, which verify calls an error
        if code != 0:
            raise Failure("a checkpoint is damaged:\n" + text)
        if newest < committed:
            raise Failure(f"step {committed} was saved, and --resume takes {newest}:\n{text}")

    # ---- processes that save together ----

    def ranks_words(self, folder, steps, every, stage, silence):
        return ["rank", folder.path, steps, every, stage, silence]

    def ranks(self, folder, count, steps, every, stage, silence=None, restarts=0,
              environment=None):
        """Without `silence` they have zeroplan's own, where deadlines count, else one that none runs into."""
        silence = silence or self.limit(20) or 86_400
        return Process(self, [self.ranks_program, "launch", count, restarts] +
                       self.ranks_words(folder, steps, every, stage, silence), environment)

    def ranks_reference(self, count, steps, every, stage):
        key = (count, steps, every, stage)
        if key not in self.references:
            folder = self.new_folder()
            begin = time.monotonic()
            run = self.ranks(folder, count, steps, every, stage)
            if run.end(600) != 0:
                raise Failure("an undisturbed run failed: " + run.describe())
            self.references[key] = (folder.digest(), time.monotonic() - begin, folder)
        return self.references[key]
