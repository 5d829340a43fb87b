"""Real launchers: torchrun, srun and mpirun start ranks that are processes (saving_rank.cc), and
torchrun a `zeroplan train` of one process. One rank is killed; what the launcher starts again, by
itself or by hand, goes on and ends as an undisturbed run. Each is tried where it is installed (Debian:
python3-torch, slurm-wlm with munge, openmpi-bin); for srun a Slurm of one node is started, as root."""
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time

from networks import free_port, wait_for_save
from runs import Failure, Process, children_of

RANKS, STEPS, EVERY, STAGE = 2, 100, 10, 2


def below(pid):
    """All processes that `pid` and those that it started have started."""
    found = children_of(pid)
    for child in list(found):
        found += below(child)
    return found


def ranks_below(bench, pid):
    """Those that run a program of the bench."""
    ours = {str(bench.ranks_program), str(bench.zeroplan), str(bench.zeroplan) + "-executor"}
    found = []
    for child in below(pid):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{child}/exe") in ours:
                found.append(child)
    return found


def finish(bench, table, what, folder, digest, run, outcome, detail):
    code = run.end(180)
    if code != 0:
        raise Failure(f"exit code {code}: {run.describe()}")
    if folder.digest() != digest:
        raise Failure("other weights than undisturbed: " + run.describe())
    table.count(what, outcome, detail)
    bench.clean(folder)


def torchrun(bench, table, train):
    what = "torchrun --max-restarts, a rank killed"
    if shutil.which("torchrun") is None:
        table.skip(what, "no torchrun here")
        return
    folder = bench.new_folder()
    count = 1 if train else RANKS
    # Underscores: torchrun 1 and 2 know them. Of --redirects, torchrun 1 takes 1 and 2 alone on
    # Python 3.11.
    words = ["torchrun", "--nnodes", "1", "--nproc_per_node", count, "--max_restarts", "3",
             "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--redirects",
             "2", "--tee", "2", "--log_dir", bench.new_path("torchrun"), "--no_python"]
    if train:
        choice, steps = "--stage 2 --offload-optimizer cpu --gpus 2", 2000
        digest, _, _ = bench.reference(choice, steps, EVERY)
        words += bench.train_words(choice, folder, steps, EVERY, ["--resume"])
    else:
        digest, _, _ = bench.ranks_reference(RANKS, STEPS, EVERY, STAGE)
        words += [bench.ranks_program] + bench.ranks_words(folder, STEPS, EVERY, STAGE, 20)
    run = Process(bench, words)
    wait_for_save(run, folder)
    found = ranks_below(bench, run.pid)
    if len(found) != count:
        raise Failure(f"{found} are not {count} ranks: {run.describe()}")
    run.kill(bench.random.choice(found))
    finish(bench, table, what, folder, digest, run, "started again, the same weights",
           "zeroplan train, 1 process" if train else f"{RANKS} ranks")


@contextlib.contextmanager
def one_node_slurm(bench):
    """The environment for srun; None where Slurm is not to be had."""
    programs = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
    if os.geteuid() != 0 or any(shutil.which(name) is None for name in programs):
        yield None
        return
    place = bench.new_path("slurm")
    for name in ("", "state", "spool", "munge"):
        (place / name).mkdir(mode=0o700)
    key = place / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    host = socket.gethostname().split(".")[0]
    munge = place / "munge" / "socket"
    (place / "slurm.conf").write_text(
        f"ClusterName=torture\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\n"
        f"AuthType=auth/munge\nAuthInfo=socket={munge}\nCredType=cred/munge\n"
        f"SlurmctldPort={free_port()}\nSlurmdPort={free_port()}\n"
        f"StateSaveLocation={place}/state\nSlurmdSpoolDir={place}/spool\n"
        f"SlurmctldPidFile={place}/slurmctld.pid\nSlurmdPidFile={place}/slurmd.pid\n"
        "ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n"
        "MpiDefault=none\nReturnToService=2\nSlurmdParameters=config_overrides\n"
        f"NodeName={host} NodeAddr=127.0.0.1 CPUs={max(RANKS, os.cpu_count())} State=UNKNOWN\n"
        "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
    (place / "spool").chmod(0o755)
    environment = {"SLURM_CONF": str(place / "slurm.conf")}
    daemons = []
    try:
        for words in (["munged", "--foreground", "--force", f"--socket={munge}",
                       f"--key-file={key}", f"--pid-file={place}/munge/pid",
                       f"--log-file={place}/munge/log", f"--seed-file={place}/munge/seed"],
                      ["slurmctld", "-D", "-f", place / "slurm.conf"],
                      ["slurmd", "-D", "-f", place / "slurm.conf"]):
            daemons.append(Process(bench, words, environment))
            time.sleep(1)
        end = time.monotonic() + 60
        while True:
            states = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True,
                                    env={**os.environ, **environment}).stdout.split()
            if states == ["idle"]:
                break
            if time.monotonic() > end:
                raise Failure(f"no node of Slurm is idle ({states}): " +
                              "".join(daemon.describe() for daemon in daemons))
            time.sleep(0.5)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.kill(number=signal.SIGTERM)
            with contextlib.suppress(Failure):
                daemon.end(20)


def by_hand_again(bench, table, what, words, environment, folder, digest):
    """Starts, kills a rank, starts the same again."""
    run = Process(bench, words, environment)
    wait_for_save(run, folder)
    # srun's are slurmd's, so look at all of the machine's.
    mine = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    ranks = []
    for pid in mine:
        with contextlib.suppress(OSError):
            if (os.readlink(f"/proc/{pid}/exe") == str(bench.ranks_program) and
                    str(folder.path).encode() in open(f"/proc/{pid}/cmdline", "rb").read()):
                ranks.append(pid)
    if len(ranks) != RANKS:
        raise Failure(f"{ranks} are not {RANKS} ranks: {run.describe()}")
    committed = folder.latest()
    run.kill(bench.random.choice(ranks))
    code = run.end(90)
    if code == 0:
        raise Failure("a rank was killed, and the exit code is 0: " + run.describe())
    bench.check_nothing_lost(folder, committed)
    again = Process(bench, words, environment)
    finish(bench, table, what, folder, digest, again, "ended, started again, the same weights",
           f"{RANKS} ranks")


def srun(bench, table):
    what = "srun (Slurm of one node), a rank killed"
    with one_node_slurm(bench) as environment:
        if environment is None:
            table.skip(what, "no Slurm here, or not root")
            return
        digest, _, _ = bench.ranks_reference(RANKS, STEPS, EVERY, STAGE)
        folder = bench.new_folder()
        words = (["srun", "--ntasks", RANKS, "--overcommit", bench.ranks_program] +
                 bench.ranks_words(folder, STEPS, EVERY, STAGE, 20))
        by_hand_again(bench, table, what, words, environment, folder, digest)


def mpirun(bench, table):
    what = "mpirun, a rank killed"
    if shutil.which("mpirun") is None:
        table.skip(what, "no mpirun here")
        return
    digest, _, _ = bench.ranks_reference(RANKS, STEPS, EVERY, STAGE)
    folder = bench.new_folder()
    words = (["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", RANKS,
              bench.ranks_program] + bench.ranks_words(folder, STEPS, EVERY, STAGE, 20))
    by_hand_again(bench, table, what, words, {}, folder, digest)


def run(bench, table, turns):
    for _ in range(turns):
        for train in (False, True):
            with table.guard("torchrun"):
                torchrun(bench, table, train)
        with table.guard("srun"):
            srun(bench, table)
        with table.guard("mpirun"):
            mpirun(bench, table)
