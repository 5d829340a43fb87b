"""Memory limits, clocks that jump, processes that are paused."""
import contextlib
import os
import pathlib
import signal
import subprocess
import time

from runs import CHOICES, Failure

STEPS, EVERY = 400, 10
MIB = 1 << 20


def control_groups():
    """Where memory control groups are made: (folder, name of the limit's file); None: nowhere."""
    for folder, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                          ("/sys/fs/cgroup", "memory.max")):
        path = pathlib.Path(folder)
        if path.is_dir() and os.access(path, os.W_OK) and (
                (path / limit).exists() or (path / "cgroup.controllers").exists()):
            return path, limit
    return None


@contextlib.contextmanager
def memory_limit(bench, size):
    """The prefix of a command that may take so much memory, and the group; None: not to be had."""
    found = control_groups()
    group = None
    if found:
        group = found[0] / f"zeroplan-torture-{os.getpid()}-{bench.count}"
        try:
            group.mkdir()
            (group / found[1]).write_text(str(size))
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            group = None
    if group is None:
        yield None
        return
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def small_memory(bench, table, choice):
    """With less memory than the run takes it is refused before it starts; with enough it is not,
    and ends as any other."""
    what = "memory limit (control group)"
    digest, _, _ = bench.reference(choice, STEPS, EVERY)
    for size, fits in ((bench.random.randint(8, 24) * MIB, False), (512 * MIB, True)):
        with memory_limit(bench, size) as prefix:
            if prefix is None:
                table.skip(what, "no control groups here")
                return
            # A build with CUDA loads libraries that take more than the least of these limits.
            loads = subprocess.run([*prefix, str(bench.zeroplan), "train", "--help"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if loads.returncode == -signal.SIGKILL:
                table.count(what, "too little to load the program", "8 to 24 MiB")
                continue
            folder = bench.new_folder()
            run = bench.train(choice, folder, STEPS, EVERY, prefix=prefix)
            code = run.end(120)
            if fits:
                if code != 0 or folder.digest() != digest:
                    raise Failure(f"exit code {code} with {size} bytes: {run.describe()}")
                table.count(what, "enough: the same weights", f"{size // MIB} MiB")
            elif code == 3 and "memory" in run.text():
                table.count(what, "too little: refused at the start", "8 to 24 MiB")
            else:
                raise Failure(f"exit code {code} with {size} bytes: {run.describe()}")
            bench.clean(folder)


def clock_jumps(bench, table, turn):
    """The wall clock is another at each look, of each process. The run is killed, and resumed."""
    what = "wall clock jumps, up to 3 years to and fro"
    log = bench.new_path("asked")
    jumps = {"LD_PRELOAD": str(bench.clock), "FAKE_CLOCK_LOG": str(log),
             "FAKE_CLOCK_SEED": str(bench.random.randrange(10**6))}
    folder = bench.new_folder()
    several = turn % 2 == 0
    if several:
        stage = turn // 2 % 4
        digest, seconds, _ = bench.ranks_reference(3, 100, EVERY, stage)
        start = lambda more: bench.ranks(folder, 3, 100, EVERY, stage, environment=jumps)
    else:
        choice = CHOICES[(3 * turn + 2) % len(CHOICES)] + " --gpus 2"
        digest, seconds, _ = bench.reference(choice, STEPS, EVERY)
        start = lambda more: bench.train(choice, folder, STEPS, EVERY, more, jumps)
    run = start([])
    time.sleep(bench.random.uniform(0, seconds))
    committed = folder.latest()
    run.kill()
    run.end(60)
    time.sleep(0.2)  # the ranks die with their launcher
    bench.check_nothing_lost(folder, committed)
    run = start(["--resume"])
    code = run.end(60 + 20 * seconds)
    if code != 0 or folder.digest() != digest:
        raise Failure(f"exit code {code} under a jumping clock: {run.describe()}")
    if several and not log.exists():
        raise Failure("no process has asked for the time, so nothing was tried")
    table.count(what, "killed, resumed, the same weights",
                "saving processes" if several else "train, asked" if log.exists() else
                "train, which never asks for it")
    bench.clean(folder)


def paused(bench, table, choice):
    """A whole run is stopped for a while and goes on."""
    what = "whole run paused (SIGSTOP, SIGCONT)"
    digest, seconds, _ = bench.reference(choice, STEPS, EVERY)
    folder = bench.new_folder()
    run = bench.train(choice, folder, STEPS, EVERY)
    for _ in range(3):
        time.sleep(bench.random.uniform(0, seconds / 2))
        run.kill(number=signal.SIGSTOP)
        time.sleep(bench.random.uniform(0, 1))
        run.kill(number=signal.SIGCONT)
    code = run.end(60 + 20 * seconds)
    if code != 0 or folder.digest() != digest:
        raise Failure(f"exit code {code} after a pause: {run.describe()}")
    table.count(what, "the same weights", "3 times, up to 1 s")
    bench.clean(folder)


def run(bench, table, memories, clocks, pauses):
    for turn in range(max(memories, clocks, pauses)):
        choice = CHOICES[(3 * turn + 2) % len(CHOICES)] + " --gpus 2"
        if turn < memories:
            with table.guard("memory limit"):
                small_memory(bench, table, choice)
        if turn < clocks:
            with table.guard("clock jumps"):
                clock_jumps(bench, table, turn)
        if turn < pauses:
            with table.guard("pauses"):
                paused(bench, table, choice)
