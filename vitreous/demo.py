"""Train, evaluate and explain a small PaCa on the embedded data: the whole project in a few minutes.

vitreous demo
"""

import os
import shlex
import shutil
import sys
import time
from pathlib import Path

from vitreous.evaluate import evaluate
from vitreous.explain import explain
from vitreous.train import train

# Small enough for two CPU cores. Only the first two stages have clusters: the second is the last one whose grid
# (16 x 16 at 64 pixels) is fine enough to show an object, and `explain` looks at the last stage with clusters.
MODEL = "paca_tiny"
MODEL_ARGS = ("dims=(16,48,96,128)", "heads=(1,2,3,4)", "depths=(1,2,2,1)", "clusters=(32,32,0,0)", "stem_stride=2")


def demo(
    *,
    out: Path = Path("runs/demo"),
    epochs: int = 4,
    train_count: int = 4000,
    test_count: int = 1000,
    size: int = 64,
    explained: int = 8,
    workers: int = 1,
    device: str = "auto",
) -> Path:
    """Train a small PaCa on the embedded shapes, test it on images it has not seen, and explain some of them.

    Takes under four minutes on two CPU cores and needs no download. Started again, it keeps the trained model and
    rewrites the explanation.

    Examples:
        vitreous demo
        vitreous demo --out runs/longer --epochs 20

    Args:
        out: Run folder; the explanation goes to its folder `explanation`.
        epochs: Passes over the training images.
        train_count: Number of training images.
        test_count: Number of held-out images.
        size: Height and width of the images.
        explained: Number of held-out images to explain.
        workers: Processes that draw images; 0 = the main one does it.
        device: cpu, cuda, cuda:1, mps, or auto.

    Returns:
        The path of the report.
    """
    start = time.monotonic()
    headline(f"1/3  train a small PaCa on {train_count} embedded images")
    run = train(
        MODEL,
        "shapes",
        out=out,
        size=size,
        epochs=epochs,
        model_args=MODEL_ARGS,
        batch_size=32,
        lr=1.5e-3,
        warmup_epochs=0.3,
        label_smoothing=0.05,
        scale=1.0,
        drop_path=0.0,
        train_count=train_count,
        val_count=min(test_count, 500),
        workers=workers,
        device=device,
    )
    headline(f"2/3  test it on {test_count} images it has not seen")
    figures = evaluate(str(run), "shapes", split="test", count=test_count, workers=workers, device=device)
    headline(f"3/3  explain {explained} of them")
    last = max(explained, 1) - 1
    report = explain(str(run), (f"shapes:test:0-{last}",), out=out / "explanation", device=device)
    print(farewell(run, report, figures["top1"], test_count, time.monotonic() - start))
    return report


def headline(text: str) -> None:
    print(f"\n{text}\n{'─' * len(text)}", flush=True)


def activation() -> str:
    """How to activate the environment if the shell does not find the command, as after `make demo`."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("vitreous") or not script.exists():
        return ""
    return f" (first: source {shlex.quote(os.path.relpath(script))})"


def farewell(run: Path, report: Path, accuracy: float, count: int, seconds: float) -> str:
    """The results, and how to go on with your own pictures."""
    return f"""
done in {seconds:.0f} s

  accuracy   {accuracy:.1%} of {count} held-out images
  model      {run}
  report     {report}   (open it in a browser)

Try it on your own images, in folders photos/train/CLASS/ and photos/val/CLASS/{activation()}:

  vitreous train paca_b0 photos --out runs/photos --epochs 30
  vitreous evaluate runs/photos photos
  vitreous explain runs/photos photos/val --out runs/photos/explanation"""
