"""`zeroplan train --backend cpu` on several hosts that are network namespaces of this machine, joined by links of a
given bandwidth and latency: how long a step takes by choice and link. Within a host ranks reach each other over its
loopback interface, unshaped. Needs root, /dev/net/tun, and ip and tc (iproute2) with the kernel's tbf.

usage: cpu_hosts.py [--hosts N] [--ranks-per-host N] [--link MBIT:MS ...] [--choice "NAME=OPTIONS" ...]
       [--plan] [--hw FOLDER] [--steps N] [--warmup N] [--repeat N] [--json FILE] [--zeroplan BINARY]
       [--mtu BYTES] [-- TRAIN OPTIONS]

--link 1000:0.2     each host sends at most 1,000 Mbit/s, and what it sends arrives 0.2 ms later
--choice "flat=--stage 3" --choice "in hosts=--stage 3 --shard-group 2"
--plan                 measures the hosts and each link first (`hw measure --backend cpu`), and prints what estimate
                       says of each choice with that profile, and which one plan takes of all of them; without
                       --choice these are stages 1 to 3 over all ranks and within hosts, with all that groups share
--hw FOLDER            where these profiles are kept; those that are there are not measured again
-- --model DIR --data FILE --micro-batch 1        what all runs share; without it a small GPT-2 and this file's bytes

Each host's device passes its packets to this script, behind a token bucket of the kernel (tbf), and the script hands
them on to the other host's after the latency: not every kernel has netem. Choices take turns; of each run the median
step without the warm-up counts, of the repetitions their median. What a link carries is measured first, by one TCP
connection; --repeat 0 does nothing else.
"""
import argparse
import collections
import contextlib
import fcntl
import json
import os
import pathlib
import secrets
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
DEVICE = "zp0"
# A packet that is no longer than this waits behind no other in the bucket.
BURST_BYTES = 64 << 10


def sh(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"cpu_hosts: {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def address(host):
    return f"10.77.0.{host + 1}"


def open_tun(namespace):
    """The packets of a new device in the namespace, as a file."""
    # A thread belongs to one namespace at a time: a child makes the device and hands over its file.
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(f"/run/netns/{namespace}") as file:
                os.setns(file.fileno()) if hasattr(os, "setns") else setns(file.fileno())
            tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
            socket.send_fds(theirs, [b"x"], [tun])
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    _, files, _, _ = socket.recv_fds(ours, 1, 1)
    os.waitpid(child, 0)
    if not files:
        sys.exit("cpu_hosts: no device in a network namespace: needs root and /dev/net/tun")
    return files[0]


def setns(file):
    import ctypes
    if ctypes.CDLL(None, use_errno=True).setns(file, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


class Hosts:
    """Namespaces, each with a device that leads to the others through pass_on."""

    def __init__(self, count, mtu):
        self.names = [f"zeroplan-{os.getpid()}-{host}" for host in range(count)]
        self.tuns = []
        self.mtu = mtu

    def __enter__(self):
        try:
            for host, name in enumerate(self.names):
                sh("ip", "netns", "add", name)
                self.tuns.append(open_tun(name))
                inside = ["ip", "-n", name]
                sh(*inside, "link", "set", "lo", "up")
                sh(*inside, "link", "set", DEVICE, "mtu", self.mtu, "txqueuelen", 10000, "up")
                sh(*inside, "addr", "add", f"{address(host)}/24", "dev", DEVICE)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for tun in self.tuns:
            os.close(tun)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def shape(self, mbit):
        for name in self.names:
            sh("tc", "-n", name, "qdisc", "replace", "dev", DEVICE, "root", "tbf", "rate", f"{mbit}mbit", "burst",
               BURST_BYTES, "latency", "1s")

    def run(self, host, words, **options):
        return subprocess.Popen(["ip", "netns", "exec", self.names[host], *map(str, words)], **options)

    @contextlib.contextmanager
    def passing_on(self, latency):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                # Packets must not wait for a core that ranks compute on.
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
                pass_on(self.tuns, latency)
            finally:
                os._exit(1)
        try:
            yield
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def pass_on(tuns, latency):
    """Hands each packet to the device of the host that it is for, `latency` seconds after it came."""
    waiting = collections.deque()  # (when it is due, the device, the packet)
    while True:
        limit = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for tun in select.select(tuns, [], [], limit)[0]:
            due = time.monotonic() + latency
            for _ in range(16):  # then it looks at what is due
                try:
                    packet = os.read(tun, 1 << 16)
                except BlockingIOError:
                    break
                host = packet[19] - 1 if packet[0] >> 4 == 4 else -1  # of IPv4's destination
                if 0 <= host < len(tuns):
                    waiting.append((due, tuns[host], packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, tun, packet = waiting.popleft()
            with contextlib.suppress(BlockingIOError):
                os.write(tun, packet)


SERVER = """
import socket, time
listener = socket.create_server(("0.0.0.0", 9999))
print("ready", flush=True)
peer, _ = listener.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(1):
    peer.send(data)
peer, _ = listener.accept()
came, began, last = 0, None, None
while data := peer.recv(1 << 20):
    last = time.monotonic()
    if began is None:
        began = last
    else:
        came += len(data)
print(came / (last - began), flush=True)
"""
CLIENT = """
import socket, statistics, sys, time
def connect():
    peer = socket.create_connection((sys.argv[1], 9999))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer
peer, trips = connect(), []
for _ in range(50):
    begin = time.monotonic()
    peer.send(b"x")
    peer.recv(1)
    trips.append(time.monotonic() - begin)
peer.close()
peer, block, begin = connect(), bytes(1 << 18), time.monotonic()
while time.monotonic() - begin < float(sys.argv[2]):
    peer.sendall(block)
print(statistics.median(trips))
"""


def measure_link(hosts, seconds=3.0):
    """(round trip in s, bytes/s) of one TCP connection from the second host to the first."""
    server = hosts.run(0, [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    server.stdout.readline()
    client = hosts.run(1, [sys.executable, "-c", CLIENT, address(0), seconds], stdout=subprocess.PIPE, text=True)
    trip, rate = float(client.communicate()[0]), float(server.communicate()[0])
    return trip, rate


def run_ranks(hosts, ranks_per_host, words, folder):
    """Runs a command once for each rank."""
    ranks = len(hosts.names) * ranks_per_host
    environment = dict(os.environ, ZEROPLAN_NO_DETECT="1", ZEROPLAN_WORLD_SIZE=str(ranks),
                       ZEROPLAN_LOCAL_WORLD_SIZE=str(ranks_per_host), ZEROPLAN_ADDRESS=address(0),
                       ZEROPLAN_PORT="29610", ZEROPLAN_RUN_TOKEN=secrets.token_hex(16))
    processes, logs = [], []
    for rank in range(ranks):
        log = open(folder / f"rank-{rank}.log", "w+")
        logs.append(log)
        # What else this machine does shall cost the ranks little.
        processes.append(hosts.run(rank // ranks_per_host, ["nice", "-n", "-10", *words],
                                   stdout=log, stderr=subprocess.STDOUT,
                                   env=dict(environment, ZEROPLAN_RANK=str(rank),
                                            ZEROPLAN_LOCAL_RANK=str(rank % ranks_per_host))))
    try:
        codes = [process.wait() for process in processes]
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        raise
    if any(codes):
        for rank, log in enumerate(logs):
            log.seek(0)
            print(f"rank {rank} ended with {codes[rank]}: {log.read()[-1500:]}", file=sys.stderr)
        sys.exit(f"cpu_hosts: {' '.join(map(str, words))}: failed")
    for log in logs:
        log.close()


def train(hosts, ranks_per_host, zeroplan, words, steps, folder):
    """The seconds of each step."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    run_ranks(hosts, ranks_per_host,
              [zeroplan, "train", "--backend", "cpu", "--steps", steps, "--metrics", metrics, *words], folder)
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [event["step_seconds"] for event in events if event["event"] == "step"]


GROUPINGS = [("stage 1", "--stage 1"), ("stage 2", "--stage 2"), ("stage 3", "--stage 3"),
             ("stage 1 in hosts", "--stage 1 --shard-group node"),
             ("stage 1 in hosts, optimizer over all", "--stage 1 --shard-group node --across-groups optimizer"),
             ("stage 2 in hosts", "--stage 2 --shard-group node"),
             ("stage 2 in hosts, optimizer over all", "--stage 2 --shard-group node --across-groups optimizer"),
             ("stage 2 in hosts, gradients over all", "--stage 2 --shard-group node --across-groups gradients"),
             ("stage 3 in hosts", "--stage 3 --shard-group node"),
             ("stage 3 in hosts, optimizer over all", "--stage 3 --shard-group node --across-groups optimizer"),
             ("stage 3 in hosts, gradients over all", "--stage 3 --shard-group node --across-groups gradients")]


def measure_hosts(hosts, args, shared, file, folder):
    """Writes the profile of the hosts and their link to `file`."""
    threads = shared[shared.index("--threads") + 1] if "--threads" in shared else 1
    run_ranks(hosts, args.ranks_per_host,
              [args.zeroplan, "hw", "measure", "--backend", "cpu", "--threads", threads, "-o", file], folder)


def ask(args, command, profile, shared, options):
    """What estimate or plan answers for the profile, as its JSON has it."""
    model, rest = [], list(map(str, shared))
    while rest:
        word = rest.pop(0)
        if word in ("--data", "--threads"):  # train's alone
            rest.pop(0)
        else:
            model.append(word)
    done = subprocess.run([args.zeroplan, command, *model, *options, "--hw", profile, "--gpus",
                           str(args.hosts * args.ranks_per_host), "--offload-optimizer", "none", "--offload-param",
                           "none", "--checkpointing", "none", "--format", "json"],
                          capture_output=True, text=True, env=dict(os.environ, ZEROPLAN_NO_DETECT="1"))
    if done.returncode != 0:
        sys.exit(f"cpu_hosts: {command} {' '.join(options)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def grouping(config):
    """(stage, ranks of a shard group or 0 for all, what groups share) of a config that plan wrote."""
    zero, own = config["zero_optimization"], config.get("_zeroplan", {})
    group = own.get("shard_group") or zero.get("mics_shard_size", 0) or zero.get("zero_hpz_partition_size", 0)
    share = own.get("across_groups", "gradients" if zero.get("zero_hpz_partition_size") else "replicate")
    return zero["stage"], max(0, group), share if group > 0 else "replicate"


def plan_link(hosts, args, shared, choices, link, folder):
    """(predicted seconds by choice, the choice with the grouping that plan takes)."""
    profiles = pathlib.Path(args.hw) if args.hw else folder
    profiles.mkdir(parents=True, exist_ok=True)
    profile = profiles / f"{args.hosts}x{args.ranks_per_host}-{link}.json"
    if not profile.exists():
        measure_hosts(hosts, args, shared, profile, folder)
    network = json.loads(profile.read_text())["network"]
    print(f"  measured by hw measure: {network['bandwidth_per_node']['value'] * 8e3:.0f} Mbit/s, "
          f"{network['latency']['value'] / 1e3:.2f} ms a message", flush=True)
    predicted, groups = {}, {}
    for choice, options in choices:
        answer = ask(args, "estimate", profile, shared, options.split())["choices"][0]
        predicted[choice] = answer["step_seconds"]["total"]
        settings = answer["settings"]
        group = settings["shard_group"] if settings["across_groups"] else 0
        groups[answer["stage"], group, settings["across_groups"] or "replicate"] = choice
    ranks = args.hosts * args.ranks_per_host
    batch = int(shared[shared.index("--micro-batch") + 1]) * ranks if "--micro-batch" in shared else ranks
    plan = ask(args, "plan", profile, shared, ["--stage", "1,2,3", "--global-batch", str(batch)])
    chosen = grouping(plan["config"])
    print(f"  {plan['advice'][0]}", flush=True)
    return predicted, groups.get(chosen, str(chosen))


def small_model(folder):
    """Options for a model whose gradients take a while on such links, and whose layers do not on a core."""
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 128, "vocab_size": 256,
        "embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0}))
    return ["--model", folder / "config.json", "--data", ROOT / "LICENSE", "--threads", 1, "--micro-batch", 1]


def main():
    parser = argparse.ArgumentParser(usage=__doc__[__doc__.index("usage: ") + 7:__doc__.index("\n\n--link")])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--link", action="append", help="MBIT:MS")
    parser.add_argument("--choice", action="append", help="NAME=OPTIONS")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--hw", help="folder of profiles")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", help="a line for each link and choice is appended to it")
    parser.add_argument("--zeroplan", default=ROOT / "build/release/zeroplan")
    parser.add_argument("--mtu", type=int, default=16000)
    own = sys.argv[1:]
    words = []
    if "--" in own:
        words = own[own.index("--") + 1:]
        own = own[:own.index("--")]
    args = parser.parse_args(own)
    if args.hosts < 2 or args.hosts > 250:
        parser.error("--hosts: 2 to 250")
    links = [tuple(map(float, link.split(":"))) for link in args.link or ["1000:0.2"]]
    choices = [choice.split("=", 1) for choice in args.choice or ([] if args.plan else ["stage 3=--stage 3"])]
    if args.plan and not choices:
        choices = list(GROUPINGS)
    with tempfile.TemporaryDirectory() as name, Hosts(args.hosts, args.mtu) as hosts:
        folder = pathlib.Path(name)
        shared = words or small_model(folder)
        print(f"{args.hosts} hosts x {args.ranks_per_host} ranks, {os.cpu_count()} cores for all; ms a step")
        for mbit, ms in links:
            hosts.shape(mbit)
            with hosts.passing_on(ms / 1000):
                trip, rate = measure_link(hosts)
                print(f"link {mbit:g} Mbit/s, {ms:g} ms: measured {rate * 8e-6:.0f} Mbit/s, round trip "
                      f"{trip * 1e3:.2f} ms{'; this machine carries no more' if rate * 8e-6 < 0.9 * mbit else ''}",
                      flush=True)
                predicted, chosen = {}, None
                if args.plan:
                    predicted, chosen = plan_link(hosts, args, shared, choices, f"{mbit:g}mbit-{ms:g}ms", folder)
                medians = {choice: [] for choice, _ in choices}
                for repetition in range(args.repeat):
                    for choice, options in choices if repetition % 2 == 0 else choices[::-1]:
                        seconds = train(hosts, args.ranks_per_host, args.zeroplan, [*shared, *options.split()],
                                        args.steps, folder)
                        medians[choice].append(statistics.median(seconds[args.warmup:]))
            if args.repeat > 0 and chosen in medians:
                fastest = min(medians, key=lambda choice: statistics.median(medians[choice]))
                more = statistics.median(medians[chosen]) / statistics.median(medians[fastest]) - 1
                summary = (f"  plan's choice: {100 * more:.1f} % more than the fastest, {fastest}; predictions "
                           f"{min(p / statistics.median(medians[c]) for c, p in predicted.items()):.2f} to "
                           f"{max(p / statistics.median(medians[c]) for c, p in predicted.items()):.2f} of what "
                           "was measured")
            else:
                summary = None
            for choice, options in choices if args.repeat > 0 else []:
                of = medians[choice]
                print(f"  {choice:38} {statistics.median(of) * 1e3:9.1f}   "
                      f"({min(of) * 1e3:.1f} to {max(of) * 1e3:.1f})",
                      f"   predicted {predicted[choice] * 1e3:.1f}" if choice in predicted else "",
                      " <- plan" if choice == chosen else "", flush=True)
                if args.json:
                    with open(args.json, "a") as file:
                        print(json.dumps({"hosts": args.hosts, "ranks_per_host": args.ranks_per_host, "mbit": mbit,
                                          "latency_ms": ms, "measured_mbit": rate * 8e-6,
                                          "round_trip_ms": trip * 1e3, "choice": choice, "options": options,
                                          "train": list(map(str, shared)), "median_seconds": statistics.median(of),
                                          "seconds": of, "predicted_seconds": predicted.get(choice),
                                          "chosen": choice == chosen}), file=file)
            if summary:
                print(summary, flush=True)


if __name__ == "__main__":
    main()
