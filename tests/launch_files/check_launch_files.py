#!/usr/bin/env python3
"""examples/many_hosts in the hands of the tools that it is for: each file is read by its tool's own parser,
and what it starts is read by zeroplan.

    check_launch_files.py slurm|torchrun|pytorchjob|mpijob ZEROPLAN

Exit code 77: the tool is not here, what needs it was not checked.
"""
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
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


def main():
    kind, zeroplan = sys.argv[1:]
    checks = {"slurm": check_slurm, "torchrun": check_torchrun, "pytorchjob": check_pytorchjob,
              "mpijob": check_mpijob}
    checks[kind](zeroplan)
    print(f"{kind}: as its tool reads it")


if __name__ == "__main__":
    main()
