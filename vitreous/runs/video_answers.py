"""What a model says about the frames of a video: JSON lines, and the video with the answers drawn on it."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vitreous.data.video import Video, VideoFile
from vitreous.files.storage import write_json
from vitreous.files.writing import open_for_writing
from vitreous.runs.streaming import PictureSource, Question, stream_answers
from vitreous.runs.trained_model import TrainedModel, in_batches
from vitreous.runtime.console import track

VIDEO_LINES, VIDEO_DRAWN = "predictions.jsonl", "overlay.mp4"


def answer_video(
    trained: TrainedModel, question: Question, video: Video, folder: Path | None
) -> list[tuple[dict[str, Any], str]]:
    """For each frame its line and a summary; lines and drawings go to the folder, if there is one."""
    times: dict[int, float] = {}

    def source(frame: Any) -> PictureSource:
        times[frame.number] = frame.seconds
        return PictureSource(frame.number, f"frame {frame.number}", lambda: frame.picture)

    batches = in_batches(map(source, video.frames()), question.batch_size)
    outcomes = (one for batch in stream_answers(trained, question, batches) for one in batch)
    found = []
    with nullcontext() if folder is None else VideoFile(folder / VIDEO_DRAWN, video.rate) as drawn:
        for one in track(outcomes, total=video.expected, label="predict", unit="frames"):
            row = {"frame": one.source.number, "seconds": round(times[one.source.number], 4), **one.answer.to_dict()}
            found.append((row, one.answer.summary()))
            if drawn is not None:
                drawn.add(one.answer.draw())
    if folder is not None:
        write_lines(folder / VIDEO_LINES, [row for row, _ in found])
    return found


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    with open_for_writing(file, "w") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


def write_video_marker(folder: Path, marker: str, **about: Any) -> None:
    """The file that says what the folder holds."""
    write_json(folder / marker, {**about, "files": sorted(path.name for path in folder.iterdir())})
