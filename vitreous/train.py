"""`vitreous train`: the loop, top to bottom.

A run is a function of its settings: sample order, augmentation, dropout and stochastic depth depend on seed, epoch,
step and index only. So a checkpoint needs no random state, and a run that is killed at any moment and started again
ends with the same bits as one that is not (on the same machine with the same versions).
"""

import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.data.loader import (
    Batch,
    BatchSampler,
    Loader,
    LoadingError,
    mix,
    seed_everything,
    worker_failures_explained,
)
from vitreous.data.source import ImageSet, describe
from vitreous.errors import InputError, command, printable
from vitreous.explanations.model_card import refresh_card
from vitreous.files.storage import folder_bytes, json_text, require_space
from vitreous.measurements.step_memory import largest_batch
from vitreous.measurements.training_plan import plan_training
from vitreous.metrics.figures import figure_text
from vitreous.registry import is_stored, resolve_name, stored_arguments
from vitreous.runs.model_config import make_config
from vitreous.runs.model_folder import PREFERRED, save_model
from vitreous.runs.run_folder import RunFolder
from vitreous.runs.trackers import (
    MLflow,
    TensorBoard,
    WeightsAndBiases,
    require_mlflow,
    require_tensorboard,
    require_wandb,
)
from vitreous.runs.trained_model import in_batches
from vitreous.runtime.calling import takes
from vitreous.runtime.console import EpochTable, RemainingTime, Throughput, format_duration, track
from vitreous.runtime.device import autocast, faster_in_bf16, keep_freed_memory
from vitreous.runtime.distributed import SINGLE_PROCESS, CollectiveInputError, World, processes
from vitreous.runtime.parallel import full_tensor, replicate, require_shardable, shard, synchronise_norms
from vitreous.tasks.base import Moment, load_task
from vitreous.training.attention import AttentionLoss
from vitreous.training.bad_images import BadImages
from vitreous.training.build import (
    build_training,
    freeze_all_but_head,
    open_splits,
    regions_fingerprint,
    require_masks,
    require_same_data,
    teacher_fingerprint,
)
from vitreous.training.clusters import ClusterLoss
from vitreous.training.faithful import FaithfulLoss
from vitreous.training.feature_scores import has_labels, labelled_features, neighbour_scores
from vitreous.training.optim import build_optimizer, set_lr, set_weight_decay
from vitreous.training.recipe import as_recipe, with_recipe
from vitreous.training.scoring import Scores, evaluation_loader, score_loader
from vitreous.training.settings import FREE, TrainSettings
from vitreous.training.state import Position, TrainState, WeightAverage
from vitreous.training.stop import StopRequested, StopSignals, failures_explained

DROPOUT_STREAM, MIXING_STREAM = 1, 2  # first number of a random key, so that no two uses of the seed coincide


def say(text: str) -> None:
    print(printable(text, keep="\n"), flush=True)  # a log file shows it at once


class StepResult(NamedTuple):
    """What all processes know about a step."""

    loss: float  # mean over the images
    signal: int  # received by any of them; 0 = none
    late: bool  # whether a checkpoint is due by the clock
    watched_terms: dict[str, float]  # of clusters, attention and the task: unweighted means over the images


TRACKERS = {"tensorboard": require_tensorboard, "wandb": require_wandb, "mlflow": require_mlflow}


@takes(TrainSettings, with_recipe)
def train(settings: TrainSettings) -> Path:
    """Train a model on the embedded shapes or on your own folder of images; returns the run folder.

    vitreous train photos
    vitreous train paca_b0 shapes --size 64 --epochs 10
    vitreous train paca_tiny flowers --out runs/flowers --epochs 50 --augment rand-m9-mstd0.5-inc1 --ema 0.999
    vitreous train resnet18 flowers --recipe finetune --epochs 20
    vitreous train xcit_tiny_12_p16 imagenet --recipe xcit_imagenet --teacher regnety_160.deit_in1k
    vitreous train paca_tiny imagenet --recipe paca_imagenet --batch-size auto --dry-run

    The same command again continues a run that was interrupted, to the same bits. The run folder holds `best/` and
    `final/`, which every other verb accepts, each with a model card, `metrics.jsonl`, and `checkpoints/`. With
    --dry-run nothing is written: it says what memory, time and disk the run would take.
    """
    resolve_name(settings.model)  # a mistyped name should fail before the data is read
    if settings.print:
        say(as_recipe(settings))
        return settings.folder
    with (
        processes(settings.device, timeout=settings.rank_timeout) as world,
        StopSignals() as stop,
        RunFolder(settings.folder, world) as run,
    ):
        images = world.agree(lambda: open_splits(settings))
        fingerprints = {split: found.fingerprint for split, found in images.items()}
        if settings.teacher is not None:
            fingerprints["teacher"] = teacher_fingerprint(settings.teacher)
        if settings.attend_away is not None:
            fingerprints["regions"] = regions_fingerprint(settings.attend_away)
        world.agree(lambda: require_masks(settings, images["train"]))
        require_same_data(world, fingerprints)
        say(describe(settings.data, load_task(settings.task).targets, **images))
        if is_stored(settings.model) and not settings.pretrained and settings.weights is None:
            say(f"model: {settings.model}, its architecture only; add --pretrained to start from its weights")
        if settings.amp == "auto":
            settings = with_fitting_precision(settings, run, world)
        if settings.batch_size == "auto":
            settings = with_fitting_batch(settings, run, stop, images, world)
        known = run.holds(
            settings.arguments(), fingerprints, defaults=settings.defaults(), free=FREE, resume=settings.resume
        )
        if known and world.on_main((run.path / "final").exists):
            say(f"the run in {run.path} is finished; nothing to do")
            return run.path
        if settings.peak_lr != settings.lr:
            say(f"learning rate: {settings.peak_lr:g}, for batches of {settings.batch}")
        if settings.knn_every and not has_labels(images["train"]):
            say("data: no labels, so that nothing can be told by nearest neighbours; --knn-every is left out")
        for note in settings.notes:
            say(note)
        with failures_explained():
            training = prepare(settings, run, stop, images, world)
            if settings.dry_run:
                show_plan(training, known)
                return run.path
            if known:
                training.resume()
            else:
                run.begin(settings.arguments(), fingerprints)
                training.bad_images.restore(0)  # left by a first start that failed
            if world.main:
                follow_elsewhere(settings, run)
            try:
                with worker_failures_explained():  # a worker's death may also show in the middle of a step
                    training.fit()
            except StopRequested as request:
                training.checkpoint()
                step = training.state.position.step
                say(f"{request}: checkpoint written at step {step}; the same command continues from there")
                raise SystemExit(request.exit_code) from None
            finally:
                training.close()
        on_features = () if training.task.classes else ("--knn",)
        say(f"finished: {run.path}   next: {command('evaluate', run.path, settings.data, *on_features)}")
    return run.path


def follow_elsewhere(settings: TrainSettings, run: RunFolder) -> None:
    """Show the metrics wherever that was asked for."""
    if settings.tensorboard:
        run.follow(TensorBoard(run.path / "tensorboard", run.seconds))
    if settings.wandb:
        run.follow(WeightsAndBiases(run.path, settings.arguments()))
    if settings.mlflow:
        run.follow(MLflow(run.path, settings.arguments()))


def prepare(
    settings: TrainSettings, run: RunFolder, stop: StopSignals, images: dict[str, ImageSet], world: World
) -> "Training":
    """A run that is ready to begin or to continue."""
    training = world.agree(lambda: Training(settings, run, stop, images, world))
    if training.note:
        say(training.note)
    training.place_model()
    try:
        training.check_before_start()
    except StopRequested as request:
        say(f"{request}: nothing has been done yet; the same command starts again")
        raise SystemExit(request.exit_code) from None
    return training


def with_fitting_batch(
    settings: TrainSettings, run: RunFolder, stop: StopSignals, images: dict[str, ImageSet], world: World
) -> TrainSettings:
    """`--batch-size auto` as a number: what the run in the folder began with, or the largest batch that fits."""
    begun = run.recorded("batch_size")
    if isinstance(begun, int):
        say(f"batch size: {begun}, with which the run in {run.path} began")
        return settings.settled(batch_size=begun)
    with failures_explained():
        few = settings.settled(batch_size=2 * world.size * settings.accumulate)
        trial = world.agree(lambda: Training(few, run, stop, images, world))
        trial.place_model()
        try:
            found = world.agree(lambda: largest_batch(trial, len(images["train"])))
        finally:
            trial.close()
    say(str(found))
    if not settings.lr_batch:
        say(f"learning rate: {settings.lr:g}, whatever the batch; --lr-batch N scales it with batches other than N")
    return settings.settled(batch_size=found.images)


def with_fitting_precision(settings: TrainSettings, run: RunFolder, world: World) -> TrainSettings:
    """`--amp auto` as what the run in the folder began with, or as what is faster here."""
    begun = run.recorded("amp")
    if begun is None:
        able = world.on_main(lambda: faster_in_bf16(world.device))
        say(f"precision: {'bf16, which this device multiplies' if able else 'fp32'} (--amp auto)")
        begun = "bf16" if able else "off"
    return settings.settled(amp=begun)


def show_plan(training: "Training", known: bool) -> None:
    """Say what the run would take; nothing is written."""
    try:
        if known:
            for note in training.state.load(training.run.path / "checkpoints", training.world) or ():
                say(note)
        with worker_failures_explained():
            say(str(plan_training(training, training.train_loader.sampler.length)))
    except StopRequested as request:
        say(f"{request}: nothing has been done")
        raise SystemExit(request.exit_code) from None
    finally:
        training.close()


class Training:
    """Everything a run consists of, and its steps in order."""

    def __init__(
        self,
        settings: TrainSettings,
        run: RunFolder,
        stop: StopSignals,
        images: dict[str, ImageSet],
        world: World = SINGLE_PROCESS,
    ) -> None:
        self.settings, self.run, self.stop, self.table = settings, run, stop, EpochTable()
        self.world, self.device, self.val_fraction = world, world.device, images["train"].val_fraction
        built = build_training(settings, images["train"], self.device)
        self.model, self.model_args, self.task, self.preprocess, self.note = built
        if settings.train_only == "head":
            freeze_all_but_head(self.model)
        self.cluster_loss = ClusterLoss(self.model, settings)
        self.attention_loss = AttentionLoss(self.model, settings, world.size)
        self.faithful_loss = FaithfulLoss(self.model, settings)
        self.term_weights = self.cluster_loss.weights | self.attention_loss.weights | self.faithful_loss.weights
        self.watched_terms: dict[str, Tensor] = {}  # of the latest piece
        self.doubted: set[str] = set()  # what was said about them
        self.layout = torch.channels_last if settings.channels_last else torch.contiguous_format
        self.images = images
        self.train_loader, self.val_loader = self._loaders(images["train"])
        self.steps_per_epoch = self.train_loader.sampler.batches
        self.total_steps = settings.all_epochs * self.steps_per_epoch
        self.lr_factor = settings.lr_schedule(self.steps_per_epoch)
        self.bad_images = BadImages(run.path, images, settings.max_corrupt, writes=world.main)
        self.saved_at = time.monotonic()
        require_images_for_all(self.train_loader.sampler, settings)
        if settings.shard:
            require_shardable(self.model, world.size)
            if settings.knn_every and self.task.kept(self.model) is self.model:
                raise InputError(
                    "--knn-every needs a part of the model's forward pass, which --shard cannot give for this task; "
                    "leave one of the two out, and use vitreous evaluate --knn afterwards"
                )

    def place_model(self) -> None:
        """Move the model to its device, and to all processes."""
        settings, model = self.settings, self.model
        keep_freed_memory(self.device)
        if self.world.size > 1:
            model = synchronise_norms(model, self.device)
        if not settings.shard:
            model = model.to(self.device, memory_format=self.layout)  # type: ignore[call-overload]
        ema = WeightAverage(model, settings.ema) if settings.ema else None  # now: a sharded model cannot be copied
        if settings.shard:
            for each in [model] if ema is None else [model, ema.model]:
                shard(each, self.device)
        optimizer = build_optimizer(
            model,
            lr=settings.peak_lr,
            weight_decay=settings.weight_decay,
            betas=settings.betas,
            eps=settings.eps,
            layer_decay=settings.layer_decay,
            head_lr=settings.head_lr,
        )
        scaler = torch.amp.GradScaler(self.device.type, enabled=settings.amp == "fp16")
        self.state = TrainState(model, optimizer, scaler, ema, Position())
        self.parameters = list(model.parameters())  # once: walking through the model is slow
        # Compiled for each shape: a step must not depend on the shapes that came before a restart.
        learner: Any = torch.compile(model, dynamic=False) if settings.compile else model
        copied = self.world.size > 1 and not settings.shard
        self.learner: Any = replicate(learner, self.device) if copied else learner
        self.skip_exchange = self.learner.no_sync if copied else nullcontext

    def _loaders(self, train_images: ImageSet) -> tuple[Loader, Loader]:
        """The only place that decides which process sees which images."""
        settings = self.settings
        sampler = BatchSampler(
            len(train_images),
            settings.batch,
            seed=settings.seed,
            shuffle=True,
            drop_last=True,
            pieces=settings.accumulate,
            repeats=settings.repeats,
            file_lengths=train_images.file_lengths,
            groups=train_images.group_members,
            rank=self.world.rank,
            world=self.world.size,
        )
        views = self.task.dataset(train_images, self.task.training_view(self.preprocess, settings))
        train_loader = Loader(
            views,
            sampler,
            self.task.collate,
            workers=settings.workers,
            worker_timeout=settings.worker_timeout,
            replace=True,
            finish=self.preprocess.normalise_bytes,
            while_waiting=self.stop_if_signalled_alone,
        )
        share = -(-sampler.batch_size // (sampler.pieces * self.world.size))  # fits into memory if training does
        self.whole_split = dict(batch_size=share, workers=settings.workers, world=self.world)
        return train_loader, self._measured("val", **self.whole_split)

    def _measured(self, split: str, **options: Any) -> Loader:
        """The pictures of a split as they are seen in evaluation."""
        timeout, waiting = self.settings.worker_timeout, self.stop_if_signalled_alone
        return evaluation_loader(
            self.task, self.images[split], self.preprocess, worker_timeout=timeout, while_waiting=waiting, **options
        )

    def check_before_start(self) -> None:
        """Try what the run will need later, so that problems show before the first step; nothing of it stays."""
        for option, requirement in TRACKERS.items():
            if getattr(self.settings, option):
                self.world.agree(requirement)
        self.world.on_main(self.require_space)
        self.world.agree(self.require_storable)
        # On each process, so that all of them fail alike.
        self.world.agree(self.try_evaluation)

    def require_space(self) -> None:
        path = self.run.path
        there = sum(folder_bytes(path / name) for name in ("checkpoints", "best", "final"))
        require_space(path, self.disk_bytes()[0] - there, "the checkpoints of this run and its model")

    def disk_bytes(self) -> tuple[int, int]:
        """Two checkpoints and the best model stay while a third checkpoint is written; two of each are left."""
        checkpoint = self.state.stored_bytes()
        tensors = self.task.kept(self.state.evaluated_model).state_dict().values()
        model = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return 3 * checkpoint + model, 2 * checkpoint + 2 * model

    def require_storable(self) -> None:
        try:
            json_text(make_config(self.task.kept(self.state.evaluated_model), **self.description()))
        except (TypeError, ValueError) as reason:
            raise InputError(f"the settings of this model cannot be stored with it: {reason}") from reason

    def try_evaluation(self, pictures: int = 2) -> Scores:
        """Evaluate two pictures or more, as after an epoch."""
        model, together = self.state.evaluated_model, min(pictures, self.val_loader.sampler.batch_size)
        loader = self._measured("val", batch_size=together, first=pictures, workers=min(self.settings.workers, 1))
        try:
            with worker_failures_explained():
                return score_loader(self.task, model, loader, World(self.device), self.settings.amp)
        finally:
            loader.close()

    def fit(self) -> None:
        """Train from the current position to the end; if the loader fails, write a checkpoint first.

        With several processes the others are still waiting for this one, and none can write without them.
        """
        self.pace, self.rate = RemainingTime(self.state.position.step), math.nan
        try:
            for epoch in range(self.state.position.epochs_done, self.settings.all_epochs):
                if self.patience_is_over():  # asked here, so that a run that was killed at its end ends again
                    break
                start = time.perf_counter()
                self.train_epoch(epoch)
                scores = self.validate(epoch)
                self.finish_epoch(epoch, scores, time.perf_counter() - start)
        except LoadingError:
            if self.world.size == 1 and self.state.position.step:
                self.checkpoint()
                say(f"checkpoint written at step {self.state.position.step}; the same command continues from there")
            raise
        self.save_model("final")
        self.world.on_main(self.write_cards)

    def patience_is_over(self) -> bool:
        """Whether the best epoch lies so far back that none better is expected."""
        position, patience = self.state.position, self.settings.patience
        if not patience or position.epochs_done - position.best_epoch < patience:
            return False
        say(
            f"stopped early: {self.task.main_metric} has not risen for {patience} epochs; the best was epoch "
            f"{position.best_epoch}, whose weights are in {self.run.path / PREFERRED[0]}"
        )
        return True

    def train_epoch(self, epoch: int) -> None:
        position = self.state.position
        start = position.step - epoch * self.steps_per_epoch  # not 0 when an epoch is continued
        self.stop_if_signalled()
        self.train_loader.set_position(epoch, start)
        self.train_mode()
        clock, images = Throughput(), self.train_loader.sampler.batch_size
        for pieces in track(
            in_batches(self.train_loader, self.train_loader.sampler.pieces),
            total=self.steps_per_epoch - start,
            label=f"epoch {epoch + 1}/{self.settings.all_epochs}",
            unit="batches",
        ):
            result = self.step(pieces, epoch)
            clock.images += images
            position.loss_sum += result.loss * images
            position.loss_images += images
            for name, term in result.watched_terms.items():
                position.term_sums[name] = position.term_sums.get(name, 0.0) + term * images
            if position.step % self.settings.log_every == 0 or position.step % self.steps_per_epoch == 0:
                self.log_training(epoch, clock.rate())
            if result.signal:
                raise StopRequested(result.signal)
            if self.checkpoint_due(result.late):
                self.checkpoint()

    def train_mode(self) -> None:
        """What keeps its weights also keeps its statistics, and drops nothing."""
        self.state.model.train()
        if self.settings.train_only == "head":
            frozen = [m for m in self.state.model.modules() if not any(p.requires_grad for p in m.parameters())]
            for module in frozen:
                module.eval()

    def step(self, pieces: list[Batch], epoch: int) -> StepResult:
        """One optimiser step on a batch in pieces; a loss or gradient that is not finite never reaches the weights."""
        state, world, number = self.state, self.world, self.state.position.step
        self.task.moment = Moment(number, self.total_steps, self.steps_per_epoch)
        state.optimizer.zero_grad(set_to_none=True)
        terms: list[Tensor] = []  # add up to the mean over the images of all pieces and processes
        names = (*self.term_weights, *self.task.watched)
        watched = dict.fromkeys(names, torch.zeros((), device=self.device))  # means over the images
        for index, piece in enumerate(pieces):
            self.bad_images.note("train", piece.unreadable)
            with nullcontext() if index == len(pieces) - 1 else self.skip_exchange():
                share = len(piece.indices) / self.train_loader.sampler.batch_size
                term = self.loss(piece, index) * share
                state.scaler.scale(term * world.size).backward()  # gradients are averaged over the processes
            terms.append(term.detach())
            watched = {name: total + share * self.watched_terms[name] for name, total in watched.items()}
        self.task.before_update(state.model)
        norm = self.clip_gradients()
        # the only point in a step that waits for the device
        numbers = torch.stack([*terms, norm, *watched.values()]).tolist()
        losses, norm, seen = numbers[: len(terms)], numbers[len(terms)], numbers[len(terms) + 1 :]
        late = time.monotonic() - self.saved_at > 60 * self.settings.checkpoint_minutes
        means, signals, lates, *seen = world.exchange(sum(losses), self.stop.received, late, *seen)
        mean = sum(means)
        if not math.isfinite(mean):
            raise self.not_finite_loss(losses, pieces, epoch)
        if self.settings.amp != "fp16" and not math.isfinite(norm):  # a scaler skips such steps by itself
            raise not_finite(f"the norm of the gradient is {norm}", number, epoch, pieces[0].indices)
        set_lr(state.optimizer, self.lr_factor(number))
        if self.settings.weight_decay_end is not None:
            set_weight_decay(state.optimizer, self.settings.weight_decay_at(self.task.moment.progress))
        state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.ema is not None:
            state.ema.update(number)
        self.task.after_step(state.model)
        state.position.step += 1
        return StepResult(mean, int(max(signals)), any(lates), dict(zip(watched, map(sum, seen), strict=True)))

    def loss(self, piece: Batch, index: int) -> Tensor:
        seed, number = self.settings.seed, self.state.position.step
        seed_everything(seed, DROPOUT_STREAM, number, index, self.world.rank)  # stochastic depth and dropout
        images, targets = self.train_loader.on(piece, self.device, self.layout)
        rng = np.random.default_rng(mix(seed, MIXING_STREAM, number, index))
        images, targets = self.task.augment_batch(images, targets, rng)
        images = self.attention_loss.watched(images)
        with autocast(self.device, self.settings.amp), self.attention_loss.differentiable():
            losses = self.task.losses(self.learner, images, targets)
            faithful = self.faithful_loss.take(images, targets)
        terms = self.cluster_loss.take() | self.attention_loss.take(images, targets, losses) | faithful
        self.watched_terms = {name: term.detach() for name, term in (terms | self.task.watch()).items()}
        losses |= {name: self.term_weights[name] * term for name, term in terms.items()}
        return torch.stack(list(losses.values())).sum()

    def clip_gradients(self) -> Tensor:
        """Returns the norm of the gradient before clipping."""
        self.state.scaler.unscale_(self.state.optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if self.settings.clip_grad:
            nn.utils.clip_grads_with_norm_(self.parameters, self.settings.clip_grad, norm)
        return full_tensor(norm)

    def not_finite_loss(self, losses: list[float], pieces: list[Batch], epoch: int) -> InputError:
        """Raised by all processes; names the samples of the first one with a bad loss."""
        bad = [index for index, loss in enumerate(losses) if not math.isfinite(loss)]
        found = self.world.gather((losses[bad[0]], pieces[bad[0]].indices) if bad else None)
        loss, samples = next(known for known in found if known is not None)
        return not_finite(f"the loss is {loss}", self.state.position.step, epoch, samples)

    def stop_if_signalled(self) -> None:
        """Stop all processes if any of them received a signal."""
        (signals,) = self.world.exchange(self.stop.received)
        if any(signals):
            raise StopRequested(int(max(signals)))

    def stop_if_signalled_alone(self) -> None:
        """The same while a single process waits for images; several processes agree at the next step."""
        if self.world.size == 1 and self.stop.received:
            raise StopRequested(self.stop.received)

    def validate(self, epoch: int) -> Scores:
        model, label = self.state.evaluated_model, f"validate {epoch + 1}/{self.settings.all_epochs}"
        world, amp, stop = self.world, self.settings.amp, self.stop_if_signalled
        scores = score_loader(self.task, model, self.val_loader, world, amp, label=label, between_batches=stop)
        every, last = self.settings.knn_every, epoch + 1 == self.settings.all_epochs
        if every and ((epoch + 1) % every == 0 or last) and has_labels(self.images["train"]):
            scores = scores._replace(values=scores.values | self.neighbour_scores())
        return scores

    def neighbour_scores(self) -> dict[str, float]:
        """How often the nearest training pictures of a validation picture, in the features, are of its class."""
        model, world, amp = self.state.evaluated_model, self.world, self.settings.amp
        bank_loader, found = self._measured("train", **self.whole_split), []
        try:
            for name, loader in (("train", bank_loader), ("val", self.val_loader)):
                with worker_failures_explained():
                    part = labelled_features(
                        self.task,
                        model,
                        loader,
                        world,
                        amp,
                        label=f"features of {name}",
                        between_batches=self.stop_if_signalled,
                    )
                found.append(part)
        finally:
            bank_loader.close()
        return neighbour_scores(found[0], found[1], len(self.images["train"].classes), world)

    def finish_epoch(self, epoch: int, scores: Scores, seconds: float) -> None:
        """Log, save the weights if they are the best so far, then record it. A kill in between repeats evaluation.

        As long as nothing tells which are the best, these are the latest.
        """
        position, value = self.state.position, scores.values.get(self.task.main_metric)
        rate = round(scores.images_per_second, 1)
        self.bad_images.note("val", scores.unreadable)
        self.settle_bad_images()
        bad = {"bad_images": len(self.bad_images)} if len(self.bad_images) else {}
        self.run.log(step=position.step, epoch=epoch + 1, split="val", **scores.values, **bad, images_per_second=rate)
        improved = position.best == -math.inf if value is None else value > position.best
        if improved:
            position.best = position.best if value is None else value
            position.best_epoch = epoch + 1
            self.save_model("best")
        position.epochs_done = epoch + 1
        self.checkpoint_position()
        self.show_epoch(epoch, scores, seconds, improved)

    def show_epoch(self, epoch: int, scores: Scores, seconds: float, improved: bool) -> None:
        """Print a row of the table; learning rate and speed are from the last training line."""
        position = self.state.position
        shown = {"epoch": f"{epoch + 1}/{self.settings.all_epochs}", "loss": f"{position.train_loss:.4f}"}
        for name, value in scores.values.items():
            if self.task.shown and name not in self.task.shown:
                continue
            shown["val loss" if name == "loss" else name] = figure_text(name, value)
        shown |= {"lr": f"{self.lr():.1e}", "img/s": f"{self.rate:.0f}", "time": format_duration(seconds)}
        shown["left"] = format_duration(self.pace.left(position.step, self.total_steps))
        self.table.row(shown, mark=improved)

    def save_model(self, name: str) -> None:
        kept = self.task.kept(self.state.evaluated_model)
        save_model(self.run.path / name, kept, **self.description(), world=self.world)

    def write_cards(self) -> None:
        for name in PREFERRED:
            refresh_card(str(self.run.path / name))

    def description(self) -> dict[str, Any]:
        """What is stored beside the weights."""
        return dict(
            name=stored_arguments(self.settings.model)[0],
            model_args=self.model_args,
            task=self.settings.task,
            classes=self.task.classes,
            preprocess=self.preprocess,
            task_args=self.task.arguments(),
            val_fraction=self.val_fraction,
        )

    def settle_bad_images(self) -> None:
        if self.bad_images.settle(self.world.gather):
            say(f"{len(self.bad_images)} images could not be read so far; they are listed in {self.bad_images.file}")
        self.state.position.bad_images = len(self.bad_images)

    def checkpoint(self) -> None:
        try:
            self.settle_bad_images()
        finally:  # too many of them end the run, but its progress is kept
            self.state.position.metric_lines = self.run.metric_lines
            self.state.save(self.run.path / "checkpoints", self.world)
            self.saved_at = time.monotonic()

    def checkpoint_position(self) -> None:
        """After an evaluation: the weights are those of the last checkpoint."""
        self.state.position.metric_lines = self.run.metric_lines
        self.state.save_position(self.run.path / "checkpoints", self.world)

    def checkpoint_due(self, late: bool) -> bool:
        every, step = self.settings.checkpoint_steps, self.state.position.step
        # At the end of an epoch evaluation comes next; if it fails, the epoch is not lost.
        return late or step % self.steps_per_epoch == 0 or (every > 0 and step % every == 0)

    def resume(self) -> None:
        for note in self.state.load(self.run.path / "checkpoints", self.world) or ():
            say(note)
        self.run.cut_metrics(self.state.position.metric_lines)
        self.bad_images.restore(self.state.position.bad_images)
        say(f"continuing {self.run.path} at step {self.state.position.step} of {self.total_steps}")

    def lr(self) -> float:
        """The learning rate of the last step."""
        return self.settings.peak_lr * self.lr_factor(self.state.position.step - 1)

    def log_training(self, epoch: int, rate: float) -> None:
        position, self.rate = self.state.position, rate
        loss = position.loss_sum / position.loss_images
        # The last line of an epoch may cover a single batch: the table shows the mean over all lines.
        seen = (position.step - epoch * self.steps_per_epoch) * self.train_loader.sampler.batch_size
        before = seen - position.loss_images
        position.train_loss = (position.train_loss * before + position.loss_sum) / seen if before else loss
        watched = {name: total / position.loss_images for name, total in position.term_sums.items()}
        position.loss_sum, position.loss_images, position.term_sums = 0.0, 0, {}
        last = dict(lr=self.lr(), images_per_second=round(rate, 1))
        self.run.log(step=position.step, epoch=epoch + 1, split="train", loss=loss, **watched, **last)
        for doubt in self.task.doubts(watched):
            if doubt not in self.doubted:
                self.doubted.add(doubt)
                say(f"warning: {doubt}")

    def close(self) -> None:
        self.train_loader.close()
        self.val_loader.close()


def require_images_for_all(sampler: BatchSampler, settings: TrainSettings) -> None:
    piece, world = sampler.batch_size // sampler.pieces, sampler.world
    needed = 2 * world - 1 if settings.mixing().active and world > 1 else world
    if piece < needed:
        pairs = " (mixup and cutmix mix images in pairs)" if needed > world else ""
        raise InputError(
            f"a batch of {sampler.batch_size} images in {sampler.pieces} pieces leaves {piece} at a time for {world} "
            f"processes, which need {needed}{pairs}; raise --batch-size, lower --accumulate, or start fewer processes"
        )


def not_finite(what: str, step: int, epoch: int, samples: tuple[int, ...]) -> CollectiveInputError:
    shown = ", ".join(map(str, samples[:64])) + (", …" if len(samples) > 64 else "")
    return CollectiveInputError(
        f"{what} at step {step} (epoch {epoch + 1}), on training samples {shown}; the weights are unchanged. "
        "Lower --lr, raise --warmup-epochs, set --clip-grad, or use --amp off or bf16"
    )
