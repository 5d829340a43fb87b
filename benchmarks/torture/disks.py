"""Disks that fail, fill up, or lose and change what they hold."""
import contextlib
import errno
import os
import shutil
import subprocess
import time

from runs import CHOICES, Failure, Folder, step_of

STEPS, EVERY = 40, 10
# A resume and two saves of it, and the final weights.
IO_STEPS, IO_EVERY, IO_BEGIN = 6, 2, 2
ERRORS = (errno.EIO, errno.ENOSPC)
# How a run may end whose disk fails: done (tried again, or no part of the run), refused at its start
# or failed, with a message.
FINE = (0, 2, 4)


def io_calls(bench, table, what, start, digest, base, stride):
    """Every call of a resume, its saves and its export fails once (where several processes save, in
    each of them), then the run is resumed. `base`: what is resumed from, at step IO_BEGIN."""
    at = offset = bench.random.randrange(stride)
    called = True
    while called and not bench.out_of_time():
        for error in ERRORS:
            folder = bench.new_folder(base)
            log = bench.new_path("call")
            run = start(folder, {"LD_PRELOAD": str(bench.shim), "FAKE_IO_UNDER": str(folder.path),
                                 "FAKE_IO_AT": str(at), "FAKE_IO_ERRNO": str(error),
                                 "FAKE_IO_LOG": str(log)})
            code = run.end(120)
            called = log.exists()
            if not called:
                bench.clean(folder)
                break
            call = log.read_text()
            log.unlink()
            with table.guard(what):
                if code not in FINE:
                    raise Failure(f"exit code {code}, call {at} ({call}): {run.describe()}")
                if code != 0 and str(folder.path) not in run.text():
                    raise Failure(f"no word of the folder, call {at} ({call}): {run.describe()}")
                bench.check_nothing_lost(folder, IO_BEGIN)
                again = start(folder, None)
                if again.end(60) != 0 or folder.digest() != digest:
                    raise Failure(f"call {at} ({call}), then resumed: {again.describe()}")
                how = ("the run went on" if code == 0 else
                       "ended with a message, then resumed")
                table.count(what, f"{os.strerror(error)}: {how}", call)
            bench.clean(folder)
        at += stride
    if called:
        table.note(what, f"out of time after call {at}")
    elif stride > 1:
        table.note(what, f"each {stride}th of about {at - stride} calls, from {offset} on")
    else:
        table.note(what, f"all {at - 1} calls, each with {len(ERRORS)} errors")
    bench.clean(base)


def io_calls_of_train(bench, table, stride):
    choice = "--stage 2 --gpus 2"
    digest, _, _ = bench.reference(choice, IO_STEPS, IO_EVERY)
    base = bench.new_folder()
    run = bench.train(choice, base, IO_BEGIN, IO_EVERY)
    if run.end(60) != 0:
        raise Failure(run.describe())
    io_calls(bench, table, "I/O call fails once, train at stage 2, 2 ranks",
             lambda folder, environment: bench.train(choice, folder, IO_STEPS, IO_EVERY,
                                                     ["--resume"], environment),
             digest, base, stride)


def io_calls_of_processes(bench, table, stride):
    count, stage = 3, 1
    digest, _, _ = bench.ranks_reference(count, IO_STEPS, IO_EVERY, stage)
    base = bench.new_folder()
    run = bench.ranks(base, count, IO_BEGIN, IO_EVERY, stage)
    if run.end(60) != 0:
        raise Failure(run.describe())
    io_calls(bench, table, f"I/O call fails once in each of {count} processes that save together",
             lambda folder, environment: bench.ranks(folder, count, IO_STEPS, IO_EVERY, stage,
                                                     environment=environment),
             digest, base, stride)


@contextlib.contextmanager
def small_disk(bench, size):
    """A file system of so many bytes; None where mounting is not allowed."""
    place = bench.new_path("disk")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "torture", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def full_disk(bench, table, choice):
    """The disk fills up in the midst of a run; once there is room again it is resumed."""
    what = "disk fills up in a run"
    steps, every = 400, 5
    digest, seconds, _ = bench.reference(choice, steps, every)
    with small_disk(bench, 8 << 20) as disk:
        if disk is None:
            table.skip(what, "no tmpfs can be mounted here")
            return
        folder = Folder(disk / "save")
        run = bench.train(choice, folder, steps, every)
        end = time.monotonic() + 60
        while folder.latest() < every * bench.random.randint(1, 6) and time.monotonic() < end:
            time.sleep(0.001)
        committed = folder.latest()
        with open(disk / "ballast", "wb", buffering=0) as ballast:
            with contextlib.suppress(OSError):
                while run.running():
                    ballast.write(bytes(4096))
            code = run.end(120)
        text = run.text()
        if code == 0:
            how = "done before it was full"
        elif code == 4 and os.strerror(errno.ENOSPC) in text and str(folder.path) in text:
            how = "ended with a message, then resumed"
        else:
            raise Failure(f"exit code {code}: {run.describe()}")
        bench.check_nothing_lost(folder, committed)
        os.unlink(disk / "ballast")
        again = bench.train(choice, folder, steps, every, ["--resume"])
        if again.end(60 + 20 * seconds) != 0 or folder.digest() != digest:
            raise Failure("resumed after a full disk: " + again.describe())
        table.count(what, how, "ENOSPC")


def harm(bench, folder):
    """Damages one file of the newest checkpoint. What was done, and whether it is a checkpoint's
    data that was (and not the pointer to it)."""
    random = bench.random
    newest = folder.checkpoints / f"step-{folder.latest():08d}"
    files = sorted(newest.iterdir()) + [folder.checkpoints / "latest"]
    path = random.choice(files)
    size = path.stat().st_size
    kind = random.choice(["bit flipped", "bit flipped", "truncated", "zeroed in part", "deleted",
                          "emptied"])
    if kind == "deleted":
        path.unlink()
    elif kind in ("truncated", "emptied"):
        os.truncate(path, random.randrange(size) if kind == "truncated" else 0)
    else:
        data = bytearray(path.read_bytes())
        at = random.randrange(size)
        if kind == "bit flipped":
            data[at] ^= 1 << random.randrange(8)
        else:
            count = random.randint(1, size - at)
            if not any(data[at:at + count]):
                data[at] = 1
            else:
                data[at:at + count] = bytes(count)
        path.write_bytes(data)
    name = "a shard" if path.name.startswith("rank") else path.name
    return f"{name} {kind}", path.name != "latest"


def damage(bench, table, choice):
    """A file of the newest checkpoint is damaged: it is found, the one before is taken, and the run
    ends as an undisturbed one."""
    digest, _, _ = bench.reference(choice, STEPS, EVERY)
    what = "newest checkpoint damaged"
    key = ("damage", choice)
    if key not in bench.references:
        base = bench.new_folder()
        # Ends at step 30 with checkpoints 20 and 30.
        run = bench.train(choice, base, STEPS - EVERY, EVERY)
        if run.end(60) != 0:
            raise Failure(run.describe())
        bench.references[key] = base
    folder = bench.new_folder(bench.references[key])
    harmed, data = harm(bench, folder)
    code, newest, text = bench.verify(folder)
    if data and (code != 2 or newest != STEPS - 2 * EVERY):
        raise Failure(f"{harmed}, and verify says {code}: {text}")
    run = bench.train(choice, folder, STEPS, EVERY, ["--resume"])
    code = run.end(60)
    resumed = [line for line in run.text().splitlines() if "resumed from" in line]
    if code != 0 or not resumed:
        raise Failure(f"{harmed}: {run.describe()}")
    step = step_of(resumed[-1])
    if data and step != STEPS - 2 * EVERY or step < STEPS - 2 * EVERY:
        raise Failure(f"{harmed}, and step {step} was taken: {run.describe()}")
    if folder.digest() != digest:
        raise Failure(f"{harmed}, then other weights: {run.describe()}")
    table.count(what, harmed, f"resumed from step {step}")
    bench.clean(folder)


def run(bench, table, io_stride, damages, full_disks):
    for turn in range(damages):
        with table.guard("damage"):
            damage(bench, table, ["--stage 2 --gpus 2", "--stage 3 --gpus 3"][turn % 2])
    for turn in range(full_disks):
        with table.guard("full disk"):
            full_disk(bench, table, CHOICES[turn % len(CHOICES)] + " --gpus 2")
    with table.guard("I/O errors"):
        io_calls_of_train(bench, table, io_stride)
    with table.guard("I/O errors"):
        io_calls_of_processes(bench, table, max(1, io_stride // 2))
