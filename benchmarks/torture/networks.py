"""Ranks that stand still, and networks that are cut, silent or slow. Ranks are processes that save
together (saving_rank.cc); "hosts" are network namespaces of this machine."""
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time

from runs import Failure, Process, children_of, rank_of

STEPS, EVERY = 100, 10
SILENCE = 20  # seconds without a word until a rank is lost: zeroplan's own
GRACE = 30    # seconds beyond that in which every process of a run has to be gone


def wait_for_save(run, folder):
    limit = run.bench.limit(30)
    end = None if limit is None else time.monotonic() + limit
    while folder.latest() == 0:
        if (end and time.monotonic() > end) or not run.running():
            raise Failure("nothing was saved: " + run.describe())
        time.sleep(0.001)


def stopped_rank(bench, table, stage, count, victim, silence):
    """A rank is stopped whole: the run ends, naming it, and goes on from its checkpoint."""
    digest, seconds, _ = bench.ranks_reference(count, STEPS, EVERY, stage)
    folder = bench.new_folder()
    run = bench.ranks(folder, count, STEPS, EVERY, stage, silence)
    wait_for_save(run, folder)
    time.sleep(bench.random.uniform(0, seconds / 3))
    pids = {rank_of(child): child for child in children_of(run.pid)}
    if victim not in pids:
        if run.end(silence + GRACE) != 0:
            raise Failure("nothing to stop: " + run.describe())
        return stopped_rank(bench, table, stage, count, victim, silence)  # too late, it was done
    begin = time.monotonic()
    run.kill(pids[victim], signal.SIGSTOP)
    code = run.end(silence + GRACE)
    took = time.monotonic() - begin
    text = run.text()
    if code == 0:
        return stopped_rank(bench, table, stage, count, victim, silence)
    if code != 4 or not re.search(rf"rank {victim}\b", text):
        raise Failure(f"exit code {code}, and rank {victim} is to be named: {run.describe()}")
    again = bench.ranks(folder, count, STEPS, EVERY, stage)
    if again.end(60 + 20 * seconds) != 0 or folder.digest() != digest:
        raise Failure("resumed after a stopped rank: " + again.describe())
    table.count("rank stopped (SIGSTOP)", "named, ended everywhere, resumed",
                f"rank {'0' if victim == 0 else 'above 0'}, silence {silence} s")
    table.longest("rank stopped (SIGSTOP)", f"after its {silence} s of silence", took - silence)
    bench.clean(folder)


class Hosts:
    """Network namespaces with an address each on one bridge."""

    def __init__(self, bench, count):
        self.names = [f"zt{os.getpid() % 10000}h{i}" for i in range(count)]
        self.bridge = f"zt{os.getpid() % 10000}br"
        self.net = f"10.{77 + bench.random.randrange(100)}.{bench.random.randrange(250)}"

    def __enter__(self):
        try:
            self.ip("link", "add", self.bridge, "type", "bridge")
            self.ip("link", "set", self.bridge, "up")
            for i, name in enumerate(self.names):
                self.ip("netns", "add", name)
                self.ip("link", "add", f"{name}o", "type", "veth", "peer", "name", f"{name}i")
                self.ip("link", "set", f"{name}i", "netns", name)
                self.ip("link", "set", f"{name}o", "master", self.bridge, "up")
                self.ip("-n", name, "addr", "add", f"{self.address(i)}/24", "dev", f"{name}i")
                self.ip("-n", name, "link", "set", f"{name}i", "up")
                self.ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError):
            self.__exit__()
            return None
        return self

    def __exit__(self, *unused):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            subprocess.run(["ip", "link", "del", f"{name}o"], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def address(self, host):
        return f"{self.net}.{host + 1}"

    def cut(self, host):
        self.ip("link", "set", f"{self.names[host]}o", "down")

    def prefix(self, host):
        return ["ip", "netns", "exec", self.names[host]]


def start_ranks(bench, folder, addresses, port, stage, silence, prefixes):
    """Ranks by hand, one of them on each of `addresses`, which is where it finds rank 0."""
    secret = bench.root / "secret"
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_text("torture " * 4)
    runs = []
    for rank, address in enumerate(addresses):
        environment = {"ZEROPLAN_RANK": rank, "ZEROPLAN_WORLD_SIZE": len(addresses),
                       "ZEROPLAN_LOCAL_RANK": 0, "ZEROPLAN_LOCAL_WORLD_SIZE": 1,
                       "ZEROPLAN_ADDRESS": address[0], "ZEROPLAN_PORT": address[1] or port,
                       "ZEROPLAN_SECRET_FILE": secret}
        runs.append(Process(bench, [bench.ranks_program] +
                            bench.ranks_words(folder, STEPS, EVERY, stage, silence),
                            {name: str(value) for name, value in environment.items()},
                            prefixes[rank]))
    return runs


def finish_and_compare(bench, folder, count, stage):
    digest, seconds, _ = bench.ranks_reference(count, STEPS, EVERY, stage)
    again = bench.ranks(folder, count, STEPS, EVERY, stage)
    if again.end(60 + 20 * seconds) != 0 or folder.digest() != digest:
        raise Failure("resumed after a cut network: " + again.describe())


def expect_named(runs, lost, begin, silence):
    """All end in time with 4, the others naming rank `lost` (what rank 0 says the others need not),
    and that one another. Returns how long it took."""
    for run in runs:
        code = run.end(max(1, begin + silence + GRACE - time.monotonic()))
        if code != 4:
            raise Failure(f"exit code {code}: {run.describe()}")
    took = time.monotonic() - begin
    texts = [run.text() for run in runs]
    others = "".join(text for rank, text in enumerate(texts) if rank != lost)
    for text, named in ((others, [lost]), (texts[lost], [0] if lost else [1, 2])):
        if not any(re.search(rf"rank {rank}\b", text) for rank in named):
            raise Failure(f"rank {named} is not named:\n{text}")
    return took


def cut_network(bench, table, stage, count, lost, silence):
    """The network of one host goes away under a run of several."""
    what = "a host's network cut (network namespaces)"
    with Hosts(bench, count) as hosts:
        if hosts is None:
            table.skip(what, "no network namespaces here")
            return
        folder = bench.new_folder()
        port = 29700 + bench.random.randrange(200)
        runs = start_ranks(bench, folder, [(hosts.address(0), 0)] * count, port, stage, silence,
                           [hosts.prefix(i) for i in range(count)])
        wait_for_save(runs[0], folder)
        begin = time.monotonic()
        hosts.cut(lost)
        took = expect_named(runs, lost, begin, silence)
        table.longest(what, f"after its {silence} s of silence", took - silence)
    finish_and_compare(bench, folder, count, stage)
    table.count(what, "named, ended everywhere, resumed",
                f"host of rank {'0' if lost == 0 else 'above 0'}, silence {silence} s")
    bench.clean(folder)


class Proxy(threading.Thread):
    """Passes on what one rank and rank 0 send each other, late and in pieces, or stops to."""

    def __init__(self, port, delay, piece):
        super().__init__(daemon=True)
        self.target, self.delay, self.piece = port, delay, piece
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.silent = False
        self.done = False
        self.passed = 0

    def run(self):
        while not self.done:
            if not select.select([self.listener], [], [], 0.1)[0]:
                continue
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                near.close()  # rank 0 is not there yet: the rank tries again
                continue
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, source, sink):
        try:
            while not self.done:
                data = source.recv(self.piece)
                if not data:
                    break
                time.sleep(self.delay)
                while self.silent and not self.done:
                    time.sleep(0.05)
                sink.sendall(data)
                self.passed += len(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def bad_network(bench, table, stage, count, silence, silent):
    """One rank's connection is slow, or says nothing any more though it stays open."""
    port = free_port()
    delay, piece = (0, 65536) if silent else (0.002, 1400)
    proxy = Proxy(port, delay, piece)
    proxy.start()
    try:
        folder = bench.new_folder()
        lost = count - 1
        addresses = [("127.0.0.1", port)] * count
        addresses[lost] = ("127.0.0.1", proxy.port)
        runs = start_ranks(bench, folder, addresses, port, stage, silence, [()] * count)
        digest, _, _ = bench.ranks_reference(count, STEPS, EVERY, stage)
        if silent:
            what = "a connection silent, but open (proxy)"
            wait_for_save(runs[0], folder)
            begin = time.monotonic()
            proxy.silent = True
            took = expect_named(runs, lost, begin, silence)
            table.longest(what, f"after its {silence} s of silence", took - silence)
            finish_and_compare(bench, folder, count, stage)
            table.count(what, "named, ended everywhere, resumed", f"silence {silence} s")
        else:
            what = "a slow connection (proxy)"
            for run in runs:
                code = run.end(300)
                if code != 0:
                    raise Failure(f"exit code {code}: {run.describe()}")
            if folder.digest() != digest:
                raise Failure("other weights over a slow connection: " + runs[0].describe())
            if proxy.passed < 10_000:
                raise Failure("the connection did not go through the proxy")
            table.count(what, "ran to its end, the same weights",
                        f"{1e3 * delay:.0f} ms late in pieces of {piece} B")
        bench.clean(folder)
    finally:
        proxy.done = True


def run(bench, table, stops, cuts, silents, slows, silence):
    random = bench.random
    for turn in range(stops):
        with table.guard("stopped rank"):
            stopped_rank(bench, table, turn % 4, 3, [2, 0, 1][turn % 3], silence)
    for turn in range(cuts):
        with table.guard("cut network"):
            if shutil.which("ip") is None:
                table.skip("a host's network cut (network namespaces)", "no ip(8) here")
                break
            cut_network(bench, table, random.randrange(4), 3, [2, 0, 1][turn % 3], silence)
    for _ in range(silents):
        with table.guard("silent network"):
            bad_network(bench, table, random.randrange(4), 3, silence, True)
    for _ in range(slows):
        with table.guard("slow network"):
            bad_network(bench, table, random.randrange(4), 3, silence, False)
