"""SIGKILL of ranks, rank 0 and launchers at random instants, and signals to commands that write."""
import time

import writers
from runs import CHOICES, Failure, alive, children_of, rank_of

STEPS, EVERY = 200, 10
END_LIMIT = 90  # seconds for a run to end by itself once a part of it was killed


def wait_until(run, seconds, condition):
    """False if the run ended, or the time did, before."""
    end = time.monotonic() + seconds
    while not condition():
        if not run.running() or time.monotonic() > end:
            return False
        time.sleep(0.0002)
    return True


def wait_for_instant(bench, run, folder, seconds):
    """Waits for a random instant of a run that takes so many seconds, half of the time for one in
    a save."""
    random = bench.random
    kind = random.choice(["start", "any", "any", "save", "save", "save", "export"])
    if kind == "save":
        saves = random.randrange(4)
        for _ in range(saves):  # not always the first
            wait_until(run, seconds, lambda: not folder.saving())
            wait_until(run, seconds, folder.saving)
        wait_until(run, seconds, folder.saving)
        time.sleep(random.uniform(0, 0.01))
    elif kind == "export":
        wait_until(run, seconds, folder.exporting)
        time.sleep(random.uniform(0, 0.004))
    else:
        time.sleep(random.uniform(0, seconds * (0.15 if kind == "start" else 1)))


def phase(run, folder):
    if folder.saving():
        return "in a save"
    if folder.exporting():
        return "writing the final weights"
    if "saved " in run.text() or "resumed from" in run.text():
        return "between saves"
    return "before the first save"


def pick_victim(bench, run, kind):
    """The process to kill; None if it is not there (yet)."""
    children = children_of(run.pid)
    if kind == "launcher":
        return run.pid if children else None
    if kind == "process":
        return run.pid
    ranks = {rank_of(child): child for child in children}
    if kind == "child":
        return children[0] if children else None
    if kind == "rank 0":
        return ranks.get(0)
    others = [pid for rank, pid in ranks.items() if rank not in (None, 0)]
    return bench.random.choice(others) if others else None


def wait_for_end_of(pids, seconds, run):
    limit = run.bench.limit(seconds)
    end = None if limit is None else time.monotonic() + limit
    while any(alive(pid) for pid in pids):
        if end and time.monotonic() > end:
            raise Failure("processes outlive their launcher: " + run.describe())
        time.sleep(0.001)


def attack(bench, table, what, start, reference, victims, by_itself):
    """One run, killed one to four times, then let go on to its end. Returns how many kills."""
    digest, seconds, _ = reference
    folder = bench.new_folder()
    kills = 0
    wanted = bench.random.randint(1, 4)
    committed = 0
    run = start(folder, resume=False)
    while kills < wanted:
        kind = bench.random.choice(victims)
        wait_for_instant(bench, run, folder, seconds)
        victim = pick_victim(bench, run, kind)
        others = [run.pid] + children_of(run.pid)
        if not run.running():
            break  # too late: it is done
        if victim is None:
            continue
        committed = max(committed, folder.latest())
        where = phase(run, folder)
        run.kill(victim)
        kills += 1
        if by_itself and kind in ("child", "rank", "rank 0"):
            table.count(what, f"{kind} killed, goes on by itself", where)
            wait_for_end_of([victim], END_LIMIT, run)
            continue
        code = run.end(END_LIMIT)
        table.count(what, f"{kind} killed", where)
        wait_for_end_of(others, END_LIMIT, run)
        if code == 0 and kind != "process":
            break  # killed in its last moment, when nothing was left to do
        bench.check_nothing_lost(folder, committed)
        run = start(folder, resume=True)
    code = run.end(END_LIMIT + 20 * seconds)
    if code != 0:
        raise Failure(f"exit code {code} of the run that should go on: {run.describe()}")
    text = run.text()
    resumed = [line for line in text.splitlines() if "resumed from" in line]
    if committed and not by_itself and resumed:
        step = int(resumed[-1].rsplit(" ", 1)[1])
        if step < committed:
            raise Failure(f"step {committed} was saved, and the run went on from {step}: {text}")
    if folder.digest() != digest:
        raise Failure(f"after {kills} kills the weights are others than undisturbed: "
                      f"{folder.path}\n{run.describe()}")
    bench.clean(folder)
    return kills


def train_attack(bench, table, choice, ranks, restarts):
    choice = f"{choice} --gpus {ranks}"
    reference = bench.reference(choice, STEPS, EVERY)
    several = bench.args.backend == "cuda" and ranks > 1

    def start(folder, resume):
        more = ["--resume"] if resume else []
        return bench.train(choice, folder, STEPS, EVERY,
                           more + (["--restarts", "6"] if restarts else []))

    if several:
        victims, what = ["rank", "rank 0", "launcher"], "ranks as processes"
    elif restarts:
        victims, what = ["child", "launcher"], "ranks as threads, --restarts"
    else:
        victims, what = ["process"], "ranks as threads"
    stage = choice.split()[1]
    offload = "with offload" if "offload" in choice else "no offload"
    return attack(bench, table, f"train, {what}, stage {stage}, {offload}", start, reference,
                  victims, restarts)


def ranks_attack(bench, table, stage, count, restarts):
    steps, every = 100, 10
    reference = bench.ranks_reference(count, steps, every, stage)

    def start(folder, resume):
        del resume  # they always do
        return bench.ranks(folder, count, steps, every, stage, restarts=6 if restarts else 0)

    what = f"saving processes, stage {stage}" + (", restarts" if restarts else "")
    return attack(bench, table, what, start, reference, ["rank", "rank 0", "launcher"], restarts)


def run(bench, table, kills):
    """Stages and offloads, each once before one comes again, and ways of starting in turn, merge and data
    tokenize among them, until there were so many kills."""
    done = 0
    turn = 0
    choices = []
    while done < kills and not bench.out_of_time():
        choices = choices or bench.random.sample(CHOICES, len(CHOICES))
        on_cpu = bench.args.backend == "cpu"
        with table.guard("kills"):
            if on_cpu and turn % 4 == 1:
                done += writers.attack(bench, table, 4)
            elif on_cpu and turn % 4 == 3:
                done += ranks_attack(bench, table, bench.random.randrange(4),
                                     bench.random.randint(2, 4), bench.random.random() < 0.4)
            else:
                ranks = bench.random.randint(1, 4) if on_cpu else bench.args.gpus
                done += train_attack(bench, table, choices.pop(), ranks, bench.random.random() < 0.4)
        turn += 1
        if table.failures:
            done += 1  # a run that never gets as far must not keep the bench for ever
    return done
