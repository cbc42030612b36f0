"""Files that start runs on clusters: whole shell and YAML, and commands that the program takes."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from repository import DOCS

from asterism.cli.train import read_arguments

FOLDER = DOCS / "howto" / "clusters"


def _scripts():
    documents = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
    job = next(one for one in documents if one["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {"slurm": (FOLDER / "slurm.sh").read_text(), "kubernetes": container["args"][0]}


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_scripts_are_whole_and_start_runs_that_can_be(kind, tmp_path):
    """With launchers that only print, bash runs them; what they would start is read as the verb reads it."""
    for name, prints in {
        "scontrol": "for number in {0..20000}; do echo node-$number; done",
        "srun": 'echo "$@"',
        "torchrun": 'echo torchrun "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{prints}\n")
        (tmp_path / name).chmod(0o755)
    script = _scripts()[kind].replace("/work/", f"{tmp_path}/")
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_NODELIST": "node-[0-1]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "7",
        "JOB_COMPLETION_INDEX": "1",
    }
    outputs = []
    for _ in range(2):
        done = subprocess.run(["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.append(shlex.split(done.stdout))
        folder = Path(outputs[-1][outputs[-1].index("--folder") + 1])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text("{}")
    first, again = (words[words.index("train") + 1 :] for words in outputs)
    arguments, config = read_arguments(first)
    assert (config.parallel, config.context, config.minutes) == ("dp=2,cp=8", 131072, None)
    assert again == ["--folder", arguments.folder, "--resume"]
    launch = " ".join(outputs[0])
    assert "--nnodes 2" in launch and "--nproc-per-node 8" in launch
    assert config.batch_size % 2 == 0  # each node reads as many sequences


def test_processes_meet_at_the_first_pod_and_nobody_else_comes_in():
    service, policy, job = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    template = job["spec"]["template"]["spec"]
    assert job["spec"]["completionMode"] == "Indexed" and job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    address = f"{job['metadata']['name']}-0.{template['subdomain']}"
    assert f"--master-addr {address}" in _scripts()["kubernetes"]
    assert service["metadata"]["name"] == template["subdomain"] and service["spec"]["clusterIP"] == "None"
    selector = service["spec"]["selector"]
    assert policy["spec"]["podSelector"]["matchLabels"] == selector == {"job-name": job["metadata"]["name"]}
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": selector}}]}]
    assert {one["name"] for one in template["volumes"]} == {
        one["name"] for one in template["containers"][0]["volumeMounts"]
    }


def test_options_of_slurm_are_its_own():
    lines = re.findall(r"^#SBATCH (.*)$", (FOLDER / "slurm.sh").read_text(), re.MULTILINE)
    known = [
        "job-name",
        "nodes",
        "ntasks-per-node",
        "gpus-per-node",
        "cpus-per-task",
        "time",
        "signal",
        "requeue",
        "open-mode",
        "output",
    ]
    assert [line.removeprefix("--").split("=")[0] for line in lines] == known
