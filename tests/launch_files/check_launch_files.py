#!/usr/bin/env python3
"""examples/many_hosts, and what `plan --for` writes, in the hands of the tools that they are for: each file is
read by its tool's own parser, and what it starts is read by zeroplan.

    check_launch_files.py slurm|torchrun|pytorchjob|mpijob|skypilot|kubernetes ZEROPLAN

Exit code 77: the tool is not here, what needs it was not checked.
"""
import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ROOT / "examples/many_hosts"
SKIPPED = 77


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def run(words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)


class Stage:
    """A folder whose programs come first in PATH and write down how they were called."""

    def __init__(self, zeroplan, names):
        self.folder = Path(tempfile.mkdtemp(prefix="zeroplan_launch_"))
        self.zeroplan = Path(zeroplan).resolve()
        self.environment = dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}",
                                ZEROPLAN_NO_DETECT="1", CALLS=str(self.folder / "calls"))
        for name in names:
            self.program(name, 'printf "%s\\0" "$0" "$@" >> "$CALLS"; printf "\\n" >> "$CALLS"')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def calls(self):
        """The words of each call, the program's name first."""
        lines = (self.folder / "calls").read_text().split("\0\n")
        words = [line.split("\0") for line in lines if line]
        return [[Path(call[0]).name, *call[1:]] for call in words]

    def check_train(self, words):
        """`words` are a command line of zeroplan train that lacks nothing but its plan file."""
        said = run([self.zeroplan, *words[1:]], env=self.environment, cwd=self.folder)
        assert said.returncode == 2 and "plan.json" in said.stderr, said.stderr
        odd = run([self.zeroplan, *words[1:], "--no-such-option"], env=self.environment)
        assert "--no-such-option" in odd.stderr, odd.stderr


def train_of(words):
    """The command line of zeroplan train that stands at the end of another one."""
    starts = [i for i in range(len(words) - 1) if words[i:i + 2] == ["zeroplan", "train"]]
    return words[starts[-1]:]


def check_shell(text):
    said = run(["bash", "-n", "-c", text])
    assert said.returncode == 0, said.stderr


def check_slurm(zeroplan):
    script = FILES / "slurm.sh"
    check_shell(script.read_text())
    with Stage(zeroplan, ["srun"]) as stage:
        said = run(["bash", script, "--steps", "7"], env=stage.environment)
        assert said.returncode == 0, said.stderr
        (words,) = stage.calls()
        assert words[0] == "srun" and words[-2:] == ["--steps", "7"], words
        stage.check_train(train_of(words))
        sbatch = shutil.which("sbatch")
        if sbatch is None:
            skip("no sbatch (apt-get install slurm-client); the script itself was checked")
        # sbatch reads the script's options, and only then looks for a controller, which is not there.
        conf = stage.folder / "slurm.conf"
        conf.write_text("ClusterName=test\nSlurmctldHost=localhost\nSlurmctldPort=1\nMessageTimeout=2\n"
                        "AuthType=auth/none\nCryptoType=crypto/none\nGresTypes=gpu\n"
                        "NodeName=node[1-2] CPUs=64 Gres=gpu:8\nPartitionName=gpu Nodes=ALL Default=YES\n")
        environment = dict(stage.environment, SLURM_CONF=str(conf))

        def submit(text):
            copy_of = stage.folder / "job.sh"
            copy_of.write_text(text)
            return run([sbatch, "--test-only", copy_of], env=environment).stderr

        text = script.read_text()
        said = submit(text)
        if "Unable to contact slurm controller" not in said and "auth" in said:
            skip(f"sbatch does not work here: {said}")
        assert "Unable to contact slurm controller" in said, said
        assert "unrecognized option" in submit(text.replace("--ntasks-per-node", "--tasks-of-node"))
        assert "Invalid --time" in submit(text.replace("--time=24:00:00", "--time=24x"))


def torchrun_words(words):
    """What torch's own parser makes of torchrun's command line."""
    try:
        from torch.distributed.run import get_args_parser
    except ImportError:
        skip("no torch in this Python (-DZEROPLAN_TRANSFORMERS_PYTHON names one that has it)")
    return get_args_parser().parse_args(words[1:])


def check_torchrun(zeroplan):
    script = FILES / "torchrun.sh"
    check_shell(script.read_text())
    with Stage(zeroplan, ["torchrun"]) as stage:
        environment = dict(stage.environment, HEAD="node1")
        assert run(["bash", script], env=stage.environment).returncode != 0  # HEAD is not set
        said = run(["bash", script, "--steps", "7"], env=environment)
        assert said.returncode == 0, said.stderr
        (words,) = stage.calls()
        stage.check_train(train_of(words))
        args = torchrun_words(words)
        assert args.nnodes == "2" and args.nproc_per_node == "8", args
        assert args.rdzv_endpoint == "node1:29500" and args.no_python, args
        assert [args.training_script, *args.training_script_args] == train_of(words)
        run_torchrun(stage, script)
    for words in pytorchjob_calls(load_yaml("pytorchjob.yaml"), zeroplan):
        args = torchrun_words(words)
        assert (args.node_rank, args.master_addr, args.master_port) == (1, "zeroplan-master-0", 23456)


def run_torchrun(stage, script):
    """The same for real: two CPU ranks of this host."""
    (stage.folder / "torchrun").unlink()
    stage.program("torchrun", f'exec {sys.executable} -m torch.distributed.run "$@"')
    stage.program("zeroplan", f'exec {stage.zeroplan} "$@"')
    planned = run([stage.zeroplan, "plan", ROOT / "examples/byte_gpt/config.json", "--gpus", "2",
                   "--plan-out", "plan.json"], env=stage.environment, cwd=stage.folder)
    assert planned.returncode == 0, planned.stderr
    (stage.folder / "data").write_bytes((ROOT / "README.md").read_bytes() * 20)
    environment = dict(stage.environment, HEAD="127.0.0.1", NODES="1", GPUS="2", PORT="0")
    said = run(["bash", script, "--backend", "cpu", "--steps", "1"], env=environment, cwd=stage.folder)
    if "Gloo" in said.stderr and "libgloo" in said.stderr:
        print("not run: this zeroplan is built without Gloo")
        return
    assert said.returncode == 0, said.stdout + said.stderr
    assert (stage.folder / "out/model.safetensors").exists(), said.stdout


def load_yaml(name):
    try:
        import yaml
    except ImportError:
        skip("no PyYAML in this Python")
    return yaml.safe_load((FILES / name).read_text())


def check_pod_command(template, stage, environment):
    """Runs what the pod's first container runs, with stand-ins for the programs."""
    container = template["spec"]["containers"][0]
    words = container["command"] + container["args"]
    assert words[:2] == ["/bin/bash", "-c"], words
    check_shell(words[2])
    said = run(words, env=dict(stage.environment, **environment), cwd=stage.folder)
    assert said.returncode == 0, said.stderr
    return stage.calls()


def same_after(model, text):
    """Reads `text` as the client's model `model` and checks that nothing of it was unknown."""
    try:
        from kubeflow.training import ApiClient
    except ImportError:
        skip("no kubeflow-training in this Python (pip install kubeflow-training==1.9.4)")

    class Response:
        data = json.dumps(text)

    client = ApiClient()
    read = client.sanitize_for_serialization(client.deserialize(Response(), model))
    assert read == text, f"{model} keeps\n{json.dumps(read)}\nof\n{json.dumps(text)}"


def refuses(model, text):
    try:
        same_after(model, text)
    except (AssertionError, ValueError):
        return
    raise AssertionError(f"{model} has room for what it does not know")


def pytorchjob_calls(job, zeroplan):
    """torchrun's command line in each of the job's pods."""
    with Stage(zeroplan, ["torchrun"]) as stage:
        for replica in job["spec"]["pytorchReplicaSpecs"].values():
            environment = {"RANK": "1", "MASTER_ADDR": "zeroplan-master-0", "MASTER_PORT": "23456"}
            words = check_pod_command(replica["template"], stage, environment)[-1]
            stage.check_train(train_of(words))
            yield words


def check_pytorchjob(zeroplan):
    job = load_yaml("pytorchjob.yaml")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    for words in pytorchjob_calls(job, zeroplan):
        nodes = sum(one["replicas"] for one in replicas.values())
        assert words[words.index("--nnodes") + 1] == str(nodes), words
    same_after("KubeflowOrgV1PyTorchJob", job)
    odd = copy.deepcopy(job)
    odd["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["container"] = []
    refuses("KubeflowOrgV1PyTorchJob", odd)


# The keys of an MPIJob's spec. Source: kubeflow/mpi-operator, pkg/apis/kubeflow/v2beta1/types.go (MPIJobSpec,
# RunPolicy) and its custom resource definition. No package has models of v2beta1; what lies below, run
# policy and replicas, is the Training Operator's, whose models are used.
MPIJOB_SPEC = {
    "slotsPerWorker": int, "runLauncherAsWorker": bool, "runPolicy": dict, "mpiReplicaSpecs": dict,
    "sshAuthMountPath": str, "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
    "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
}


def mpijob_breaches(job):
    spec = job["spec"]
    yield from (f"unknown: {key}" for key in spec if key not in MPIJOB_SPEC)
    for key, kind in MPIJOB_SPEC.items():
        if key not in spec:
            continue
        good = spec[key] in kind if isinstance(kind, tuple) else type(spec[key]) is kind
        if not good:
            yield f"{key}: {spec[key]}"
    yield from (f"no {key}" for key in ("Launcher", "Worker") if key not in spec["mpiReplicaSpecs"])
    if set(job) != {"apiVersion", "kind", "metadata", "spec"}:
        yield f"keys {set(job)}"
    if (job["apiVersion"], job["kind"]) != ("kubeflow.org/v2beta1", "MPIJob"):
        yield "another kind"


def check_mpijob(zeroplan):
    job = load_yaml("mpijob.yaml")
    assert not list(mpijob_breaches(job)), list(mpijob_breaches(job))
    odd = copy.deepcopy(job)
    odd["spec"]["slotPerWorker"] = odd["spec"].pop("slotsPerWorker")
    odd["spec"]["launcherCreationPolicy"] = "Never"
    assert len(list(mpijob_breaches(odd))) == 2
    replicas = job["spec"]["mpiReplicaSpecs"]
    with Stage(zeroplan, ["mpirun", "zeroplan"]) as stage:
        hosts = stage.folder / "hostfile"
        hosts.write_text("zeroplan-worker-0.zeroplan.default.svc slots=8\n"
                         "zeroplan-worker-1.zeroplan.default.svc slots=8\n")
        doctor, mpirun = check_pod_command(replicas["Launcher"]["template"], stage,
                                           {"OMPI_MCA_orte_default_hostfile": str(hosts)})
        assert doctor == ["zeroplan", "doctor", "--hostfile", str(hosts)], doctor
        assert "MASTER_ADDR=zeroplan-worker-0.zeroplan.default.svc" in mpirun, mpirun
        ranks = job["spec"]["slotsPerWorker"] * replicas["Worker"]["replicas"]
        assert mpirun[mpirun.index("-np") + 1] == str(ranks), mpirun
        stage.check_train(train_of(mpirun))
        (stage.folder / "hosts").write_text("a.invalid slots=8\nb.invalid slots=8\n")
        said = run([stage.zeroplan, "doctor", "--hostfile", "hosts", "--ssh", "false"],
                   env=stage.environment, cwd=stage.folder)
        assert re.search(r"a\.invalid +does not answer", said.stdout), said.stdout + said.stderr
    same_after("KubeflowOrgV1RunPolicy", job["spec"]["runPolicy"])
    for replica in replicas.values():
        same_after("KubeflowOrgV1ReplicaSpec", replica)


def written_for(kind, stage, options):
    """The file that `plan --for` writes, and the plan's beside it."""
    said = run([stage.zeroplan, "plan", "--model", "gpt2", "--quick", "--for", kind, "--out", "run.yaml",
                "--plan-out", "plan.json", *options.split()], env=stage.environment, cwd=stage.folder)
    assert said.returncode == 0, said.stderr
    return stage.folder / "run.yaml"


def read_task(file):
    """A SkyPilot task as SkyPilot reads it, without a cloud."""
    os.environ.update(HOME=str(file.parent), SKYPILOT_DISABLE_USAGE_COLLECTION="1")
    try:
        import sky
    except ImportError:
        skip("no skypilot in this Python (pip install skypilot==0.14.1)")
    os.chdir(file.parent)  # local files are named relative to it
    return sky.Task.from_yaml(str(file))


def check_skypilot(zeroplan):
    with Stage(zeroplan, ["torchrun"]) as stage:
        (stage.folder / "zeroplan.deb").write_text("")
        (stage.folder / "data").mkdir()
        file = written_for("skypilot", stage, "--hw dgx-h100 --interruptions 2/day")
        task = read_task(file)
        (resources,) = task.resources
        assert resources.accelerators == {"H100": 8} and resources.use_spot, resources
        assert task.num_nodes == 1 and list(task.storage_mounts) == ["/bucket"], task
        assert task.file_mounts["~/plan.json"] == "plan.json", task.file_mounts
        text = file.read_text()
        file.write_text(text.replace("use_spot", "use_spots"))
        try:
            read_task(file)
        except Exception as refused:  # whatever SkyPilot throws
            assert "use_spots" in str(refused), refused
        else:
            raise AssertionError("SkyPilot has room for what it does not know")
        check_shell(task.setup)
        check_bucket(stage, task)
        file = written_for("skypilot", stage, "--hw dgx-a100-80gb --gpus 16")
        task = read_task(file)
        (resources,) = task.resources
        assert resources.accelerators == {"A100-80GB": 8} and not resources.use_spot, resources
        assert task.num_nodes == 2 and task.volumes == {"/shared": "zeroplan"}, task
        nodes = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
        said = run(["bash", "-c", task.run], env={**stage.environment, **task.envs, **nodes})
        assert said.returncode == 0, said.stderr
        words = stage.calls()[-1]
        assert words[words.index("--nnodes") + 1] == "2" and words[words.index("--node-rank") + 1] == "1"
        assert words[words.index("--master-addr") + 1] == "10.0.0.1", words
        stage.check_train(train_of(words))


# Stands in for `zeroplan train`: saves a step further than what --resume finds, then ends as the first run, which
# its machine takes along, or as the last.
TRAIN = """
printf "%s\\0" "$0" "$@" >> "$CALLS"; printf "\\n" >> "$CALLS"
while [ "$1" != --save ]; do shift; done
cd "$2/checkpoints"
last=$(cat latest 2> /dev/null || echo step-00000000)
next=$(printf 'step-%08d' $((10#${last#step-} + 5)))
mkdir $next && echo of $next > $next/meta.json && echo $next > latest
trap 'exit 130' TERM
[ $next = step-00000015 ] || while true; do sleep 0.1; done
touch ../model.safetensors ../config.json
"""


def check_bucket(stage, task):
    """The task's script: a machine that is lost, one that is stopped, and one that comes to the end."""
    stage.program("zeroplan", TRAIN)
    bucket = stage.folder / "bucket"

    def start(machine):
        environment = {**stage.environment, **task.envs, "HOME": str(stage.folder / machine), "BUCKET": str(bucket)}
        return subprocess.Popen(["bash", "-c", task.run], env=environment, start_new_session=True)

    def wait_for(name):
        while not (bucket / name).exists():
            time.sleep(0.1)

    lost = start("first")
    wait_for("step-00000005.complete")
    os.killpg(lost.pid, signal.SIGKILL)
    lost.wait()
    (bucket / "step-00000007").mkdir()  # half a copy, of a machine that was lost meanwhile
    stopped = start("second")
    wait_for("step-00000010.complete")
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait() == 130
    assert start("third").wait() == 0
    held = sorted(path.name for path in bucket.iterdir() if path.name != "step-00000007")
    assert held == ["config.json", "model.safetensors", "step-00000010", "step-00000010.complete", "step-00000015",
                    "step-00000015.complete"], held
    assert (bucket / "step-00000015/meta.json").read_text() == "of step-00000015\n"
    (stage.folder / "zeroplan").unlink()
    for words in stage.calls():
        assert words[words.index("--save-every") + 1] == "auto" and words[-1] == "--resume", words
    stage.check_train([stage.calls()[0][0], *stage.calls()[0][1:]])


def check_kubernetes(zeroplan):
    try:
        import kubernetes_validate
        import yaml
    except ImportError:
        skip("no kubernetes-validate in this Python (pip install kubernetes-validate==1.37.0)")

    def validate(document):
        kubernetes_validate.validate(document, "1.37", strict=True)

    with Stage(zeroplan, ["torchrun", "zeroplan"]) as stage:
        for options, nodes in (("--hw dgx-h100 --interruptions 2/day --notice 30s", 1), ("--hw dgx-h100 --gpus 16", 2)):
            documents = list(yaml.safe_load_all(written_for("kubernetes", stage, options).read_text()))
            assert [one["kind"] for one in documents] == ["Service"] * (nodes - 1) + ["Job"], documents
            for document in documents:
                validate(document)
            job = documents[-1]["spec"]
            assert job["completions"] == job["parallelism"] == nodes, job
            words = check_pod_command(job["template"], stage, {"JOB_COMPLETION_INDEX": "1"})[-1]
            assert (words[0] == "torchrun") == (nodes > 1), words
            if nodes > 1:
                assert words[words.index("--master-addr") + 1] == "zeroplan-0.zeroplan", words
                assert words[words.index("--nnodes") + 1] == "2", words
            stage.check_train(train_of(words))
            odd = copy.deepcopy(documents[-1])
            odd["spec"]["template"]["spec"]["container"] = []
            try:
                validate(odd)
            except kubernetes_validate.ValidationError:
                continue
            raise AssertionError("Kubernetes' schema has room for what it does not know")


def main():
    kind, zeroplan = sys.argv[1:]
    checks = {"slurm": check_slurm, "torchrun": check_torchrun, "pytorchjob": check_pytorchjob,
              "mpijob": check_mpijob, "skypilot": check_skypilot, "kubernetes": check_kubernetes}
    checks[kind](zeroplan)
    print(f"{kind}: as its tool reads it")


if __name__ == "__main__":
    main()
