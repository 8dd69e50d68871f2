"""Trackers: metrics.jsonl, which is the record of a run, shown elsewhere too.

Weights & Biases and MLflow are servers that keep what they were sent. A file in the run's folder says which of their
runs this one is and how many lines it has sent, so that a continued run goes on there and sends no line twice: lines
that were measured again after a checkpoint are the same to the bit.
"""

import json
import logging
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Protocol
from urllib.request import urlopen

from vitreous.errors import InputError, printable, to_install_extra
from vitreous.files.storage import DamagedError, read_stored_json, replace_file

POSITION_FIELDS = {"step", "epoch", "split", "seconds"}  # of a line: its position in the run, not a measurement
PROBE_SECONDS = 5.0
PROJECT = "vitreous"  # under which the servers list runs, unless their own variables say otherwise

_logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """Shows metrics.jsonl, which is the record, elsewhere.

    A new one is a class with these two methods, and a setting that turns it on.
    """

    def log(self, line: dict[str, Any]) -> None:
        """Show a line of metrics.jsonl. A continued run first sends all lines that still count again."""

    def close(self) -> None: ...


def numbers_of(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a line, named split/metric."""
    split = line.get("split", "train")
    return {
        f"{split}/{name}": value
        for name, value in line.items()
        if name not in POSITION_FIELDS and isinstance(value, int | float)
    }


def require_tensorboard() -> None:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise InputError(f"--tensorboard needs the package tensorboard: {to_install_extra('log')}") from error


class TensorBoard:
    """Scalars named split/metric in a folder for `tensorboard --logdir`.

    Its files are rewritten at every start, so that a continued run shows no line twice and none that was dropped.
    `spent` is the time in seconds that the run has taken so far.
    """

    def __init__(self, folder: Path, spent: float) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        for earlier in folder.glob("events.out.tfevents.*"):
            earlier.unlink()
        self._writer = SummaryWriter(str(folder))
        self._start = time.time() - spent

    def log(self, line: dict[str, Any]) -> None:
        at = self._start + line.get("seconds", 0.0)  # when it was measured, so that TensorBoard's time axis is right
        for name, value in numbers_of(line).items():
            self._writer.add_scalar(name, value, line.get("step", 0), walltime=at)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class RemoteTracker(ABC):
    """A server that keeps what it is sent. One that fails during a run is told once, and the run goes on."""

    option: str  # of train

    def __init__(self, folder: Path, arguments: dict[str, Any]) -> None:
        self._file = folder / f"{self.option}.json"
        self._seen, self._sent, self._works = 0, 0, True
        known = self._remembered()
        self.identity = self.begin(folder, arguments, known.get("run"))
        if self.identity == known.get("run"):
            self._sent = int(known.get("lines", 0))

    def _remembered(self) -> dict[str, Any]:
        try:
            content = read_stored_json(self._file)
        except DamagedError:
            return {}
        return content if isinstance(content, dict) and isinstance(content.get("lines"), int) else {}

    @abstractmethod
    def begin(self, folder: Path, arguments: dict[str, Any], known: str | None) -> str:
        """Open the server's run: the known one, or a new one. Returns its name there."""

    @abstractmethod
    def send(self, line: dict[str, Any]) -> None: ...

    @abstractmethod
    def end(self) -> None: ...

    def log(self, line: dict[str, Any]) -> None:
        self._seen += 1
        if self._seen <= self._sent or not self._works:
            return
        try:
            self.send(line)
        except Exception as reason:  # whatever the package raises: measurements are safe in metrics.jsonl
            self._works = False
            _logger.warning(
                printable(f"--{self.option} cannot be reached any more ({first_line(reason)}); the run goes on without")
            )
            return
        self._sent = self._seen
        replace_file(self._file, json.dumps({"run": self.identity, "lines": self._sent}) + "\n")

    def close(self) -> None:
        try:
            self.end()
        except Exception as reason:  # the run itself has ended well
            _logger.warning(printable(f"--{self.option} did not take its last lines ({first_line(reason)})"))


def first_line(reason: BaseException) -> str:
    return (str(reason).strip().splitlines() or [type(reason).__name__])[0][:200]


def require_wandb() -> None:
    """The package, and somebody to log in as unless it is used offline."""
    try:
        import wandb
    except ImportError as error:
        raise InputError(f"--wandb needs the package wandb: {to_install_extra('wandb')}") from error
    if wandb.setup().settings.mode != "online":
        return
    try:
        known = wandb.login()
    except wandb.errors.Error:
        known = False
    if not known:
        raise InputError(
            "--wandb needs to know who you are; run wandb login or set WANDB_API_KEY, or set WANDB_MODE=offline and "
            "send the runs later with wandb sync"
        )


class WeightsAndBiases(RemoteTracker):
    """A run of the project that WANDB_PROJECT names. Offline, every start is a run of its own in the folder wandb."""

    option = "wandb"

    def begin(self, folder: Path, arguments: dict[str, Any], known: str | None) -> str:
        require_wandb()
        import wandb

        offline = wandb.setup().settings.mode == "offline"
        try:
            self._run = wandb.init(
                project=wandb.setup().settings.project or PROJECT,
                name=folder.name,
                dir=str(folder),
                config=arguments,
                id=None if offline else known,
                resume=None if offline else "allow",
                settings=wandb.Settings(silent=True),
            )
        except wandb.errors.Error as reason:
            raise InputError(
                f"--wandb cannot begin ({first_line(reason)}); check the network, or set WANDB_MODE=offline"
            ) from reason
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        return str(self._run.id)

    def send(self, line: dict[str, Any]) -> None:
        self._run.log({**numbers_of(line), "step": line.get("step", 0), "epoch": line.get("epoch", 0)})

    def end(self) -> None:
        self._run.finish()


def require_mlflow() -> None:
    """The package, and a server that answers if one is named."""
    try:
        import mlflow
    except ImportError as error:
        raise InputError(f"--mlflow needs the package mlflow: {to_install_extra('mlflow')}") from error
    address = mlflow.get_tracking_uri()
    if address.startswith(("http://", "https://")):
        try:
            urlopen(f"{address.rstrip('/')}/health", timeout=PROBE_SECONDS).close()  # noqa: S310  (http only)
        except (OSError, ValueError) as reason:
            raise InputError(
                f"--mlflow: the server at {address} does not answer ({first_line(reason)}); start it (mlflow server), "
                "or set MLFLOW_TRACKING_URI to another one, or to a folder"
            ) from reason


class MLflow(RemoteTracker):
    """A run of the experiment that MLFLOW_EXPERIMENT_NAME names, on the server or in the folder MLFLOW_TRACKING_URI."""

    option = "mlflow"

    def begin(self, folder: Path, arguments: dict[str, Any], known: str | None) -> str:
        require_mlflow()
        import mlflow
        from mlflow.exceptions import MlflowException

        self._client, name = mlflow.MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        if known is not None and self._goes_on(known):
            return known
        try:
            experiment = self._client.get_experiment_by_name(name)
            number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            run = self._client.create_run(number, run_name=folder.name)
        except (MlflowException, ImportError) as reason:
            raise InputError(f"--mlflow cannot begin ({first_line(reason)}); check MLFLOW_TRACKING_URI") from reason
        for key, value in arguments.items():
            self._client.log_param(run.info.run_id, key, str(value)[:500])
        return str(run.info.run_id)

    def _goes_on(self, known: str) -> bool:
        """Whether the run is still there, which then counts as running again."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.update_run(known, status="RUNNING")
        except MlflowException:
            return False
        return True

    def send(self, line: dict[str, Any]) -> None:
        for name, value in numbers_of(line).items():
            self._client.log_metric(self.identity, name.replace("@", "_at_"), value, step=line.get("step", 0))

    def end(self) -> None:
        self._client.set_terminated(self.identity)
