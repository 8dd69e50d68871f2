"""docs/scale.md: its commands work in order, its launch examples are what torchrun and vitreous take."""

import os
import re
import shlex
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from torch.distributed.run import get_args_parser

from tests.support.pages import ROOT, dead_links, read
from tests.support.ranks import Ranks
from vitreous.runtime.distributed import LOST_CONTACT, RANK_TIMEOUT_SECONDS, RENDEZVOUS_TIMEOUT
from vitreous.training.recipe import RECIPE_KEYS
from vitreous_command import main

PAGE = "docs/scale.md"
TINY = {
    "train": "--size 32 --epochs 1 --batch-size 8 --train-count 16 --val-count 9 --workers 0 --device cpu "
    "--model-args dims=(8,16,24,32) depths=(1,1,1,1) heads=(1,2,3,4)",
    "evaluate": "--count 9 --workers 0 --device cpu",
    "score": "--device cpu",
    "atlas": "--device cpu",
}


def launched(words: list[str]) -> SimpleNamespace:
    """What torchrun understands; it leaves the process if it does not."""
    parsed = get_args_parser().parse_args(words[1:])
    assert (words[0], parsed.module, parsed.training_script) == ("torchrun", True, "vitreous")
    return parsed


def settings_are_accepted(words: list[str]) -> None:
    assert words[0] == "train"
    assert main([*words, "--print"]) == 0


@pytest.mark.system
def test_commands_and_snippets_work_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for language, text in re.findall(r"```(bash|python)\n(.*?)```", read(PAGE), re.S):
        if language == "python":
            exec(text, {})
            continue
        for line in text.splitlines():
            words = shlex.split(line)
            if words[0] == "vitreous":
                assert main([*words[1:], *TINY[words[1]].split()]) == 0, line
                continue
            parsed = launched(words)
            verb = parsed.training_script_args
            if not parsed.standalone:
                settings_are_accepted(verb)
                continue
            tiny = [*verb, *TINY[verb[0]].split()]
            ranks = Ranks(int(parsed.nproc_per_node), tiny, tmp_path / "logs", partial(os.chdir, tmp_path))
            assert ranks.wait() == [0, 0], f"{line}\n{ranks.said_by_all()}"
            assert ranks.said(1) == "", "only the first process talks"
    assert {path.name for path in Path("runs").iterdir()} == {"two", "parts", "from_parts", "elastic"}
    checkpoints = [path.name for path in Path("runs/parts/checkpoints").rglob("tensors*")]
    assert sorted(set(checkpoints)) == ["tensors-1.safetensors", "tensors.safetensors"]


def test_claims() -> None:
    page = read(PAGE)
    assert f"`--rank-timeout` ({RANK_TIMEOUT_SECONDS:g} s)" in " ".join(page.split())
    assert f"exit code {LOST_CONTACT}" in page
    assert RENDEZVOUS_TIMEOUT.total_seconds() == 600
    assert "they wait ten minutes" in page
    torchrun = {option for action in get_args_parser()._actions for option in action.option_strings}
    named = set(re.findall(r"`(--[a-z-]+)", page))
    ours = {f"--{key.replace('_', '-')}" for key in RECIPE_KEYS} | {"--out", "--recipe"}
    assert named <= ours | torchrun
    assert not dead_links(PAGE)


# ---- launch examples ---------------------------------------------------------------------------------------------


def test_kubernetes_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    service, job = yaml.safe_load_all(read("docs/examples/train.yaml"))
    assert (service["kind"], job["kind"], job["apiVersion"]) == ("Service", "Job", "batch/v1")
    name, pod = job["metadata"]["name"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    parsed = launched(container["command"])
    assert parsed.rdzv_endpoint.split(":")[0] == f"{name}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(parsed.nnodes)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(parsed.nproc_per_node)
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted.keys() == {volume["name"] for volume in pod["volumes"]}
    settings_are_accepted(parsed.training_script_args)
    assert parsed.training_script_args[2].startswith(mounted["data"])
    assert f"--out={mounted['runs']}/paca_tiny" in parsed.training_script_args


STUBS = {
    "srun": 'exec "$@"',
    "scontrol": 'if [ "$1" = show ]; then echo node7; echo node8; else echo "$@" >> requeued; fi',
    # asked to stop, a real one needs a while to write its checkpoint
    "torchrun": (
        'printf "%s\\n" "$@" > launched.part; trap "sleep 0.3; echo saved > saved; exit 1" TERM; '
        "mv launched.part launched; for i in $(seq $SECONDS_TO_RUN); do sleep 0.1; done; exit $CODE"
    ),
}


def submit(folder: Path, *, seconds: float, code: int) -> subprocess.Popen:
    """The job script with stand-ins for the commands of a cluster."""
    for name, text in STUBS.items():
        stub = folder / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/bin/bash\n{text}\n")
        stub.chmod(0o755)
    environment = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_ID": "42",
        "SLURM_JOB_NUM_NODES": "2", "SECONDS_TO_RUN": str(round(10 * seconds)), "CODE": str(code),
    }  # fmt: skip
    return subprocess.Popen(["bash", ROOT / "docs/examples/train.sbatch"], cwd=folder, env=environment)


@pytest.mark.system
def test_slurm_example_starts_what_torchrun_and_vitreous_take(tmp_path: Path, monkeypatch) -> None:
    assert submit(tmp_path, seconds=0, code=0).wait(20) == 0
    monkeypatch.chdir(tmp_path)
    parsed = launched(["torchrun", *(tmp_path / "launched").read_text().splitlines()])
    assert (parsed.nnodes, parsed.rdzv_endpoint, parsed.rdzv_id) == ("2", "node7:29500", "42-0")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", read("docs/examples/train.sbatch"), re.M))
    assert options["gpus-per-node"] == parsed.nproc_per_node
    assert options["nodes"] == "2"
    assert options["signal"].startswith("B:TERM@")
    settings_are_accepted(parsed.training_script_args)


@pytest.mark.system
def test_slurm_example_queues_again_when_its_time_is_up_and_not_when_it_failed(tmp_path: Path) -> None:
    assert submit(tmp_path, seconds=0, code=3).wait(20) == 3
    assert not (tmp_path / "requeued").exists()
    (tmp_path / "launched").unlink()
    job = submit(tmp_path, seconds=30, code=0)
    deadline = time.monotonic() + 20
    while not (tmp_path / "launched").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # until the script waits
    job.send_signal(signal.SIGTERM)
    assert job.wait(20) != 0
    assert (tmp_path / "saved").exists(), "the script waited for the checkpoint"
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"
