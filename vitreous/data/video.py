"""Videos as pictures, every so many frames, and pictures as a video. PyAV decodes and encodes."""

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from vitreous.errors import InputError, to_install_extra
from vitreous.files.storage import write_errors_explained
from vitreous.files.writing import open_for_writing

VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg")
FOR_WRITING = "w"
CODECS = ("libx264", "mpeg4")  # the first that this PyAV has
USUAL_RATE = Fraction(25)  # frames a second, of a video that does not tell
MOST_FRAMES_TOLD = 20


class Frame(NamedTuple):
    number: int  # within the video, from 0
    seconds: float
    picture: Image.Image  # upright


def require_video() -> Any:
    """PyAV, which is an extra."""
    try:
        import av
    except ImportError as error:
        raise InputError(f"a video needs the package av: {to_install_extra('video')}") from error
    return av


def only_video(names: Sequence[Any]) -> Path | None:
    """The video among what a verb was given; None if there is none. One at a time, and no pictures beside it."""
    videos = [name for name in names if isinstance(name, str) and Path(name).suffix.lower() in VIDEO_SUFFIXES]
    if not videos:
        return None
    if len(names) > 1:
        raise InputError(f"{videos[0]} is a video, which is taken alone; {len(names)} names were given")
    path = Path(videos[0]).expanduser()
    if not path.is_file():
        raise InputError(f"there is no video '{path}'; give a file ({', '.join(VIDEO_SUFFIXES)})")
    require_video()
    return path


def open_video(names: Sequence[Any], stride: int) -> "Video | None":
    """The same, opened; None if there is none."""
    path = only_video(names)
    return None if path is None else Video(path, stride)


class Video:
    """A video file that is read from its start to its end; what cannot be decoded is one line."""

    def __init__(self, path: Path, stride: int) -> None:
        if stride < 1:
            raise InputError(f"--stride {stride} cannot be used; give 1 (every frame) or more")
        self.path, self.stride = path, stride
        with self._opened() as container:
            stream = container.streams.video[0]
            self.rate = Fraction(stream.average_rate or USUAL_RATE) / stride
            self.expected = -(-stream.frames // stride) if stream.frames else None  # frames that will come, if known

    def _opened(self) -> Any:
        av = require_video()
        try:
            container = av.open(str(self.path))
        except (av.error.FFmpegError, OSError) as reason:
            raise InputError(f"{self.path} cannot be read as a video ({reason}); give another file") from reason
        if not container.streams.video:
            container.close()
            raise InputError(f"{self.path} has no frames, only other streams; give a video with pictures")
        return container

    def frames(self) -> Iterator[Frame]:
        """Every `stride`-th frame; a video that breaks off ends there, one without any frame is an error."""
        av = require_video()
        found = 0
        with self._opened() as container:
            try:
                for number, frame in enumerate(container.decode(video=0)):
                    if number % self.stride == 0:
                        found += 1
                        yield Frame(number, float(frame.time or 0.0), upright(frame))
            except av.error.FFmpegError as reason:
                if not found:
                    raise InputError(
                        f"no frame of {self.path} can be decoded ({reason}); give another file"
                    ) from reason
        if not found:
            raise InputError(f"{self.path} has no frames; give another file")


def upright(frame: Any) -> Image.Image:
    """As it is meant to be seen: phones turn the camera, and note it beside the pixels."""
    picture = frame.to_image()
    turned = int(getattr(frame, "rotation", 0) or 0)
    return picture.rotate(turned, expand=True) if turned else picture


class VideoFile:
    """Pictures, of the size of the first, as a video that every browser plays. A full disk is an InputError."""

    def __init__(self, path: Path, rate: Fraction) -> None:
        self._av, self._path = require_video(), path
        self._file = open_for_writing(path, FOR_WRITING, binary=True)
        self._container = self._av.open(self._file, FOR_WRITING, format=path.suffix.removeprefix("."))
        self._rate = rate.limit_denominator(1000)
        self._stream: Any = None

    def add(self, picture: Image.Image) -> None:
        if self._stream is None:
            self._stream = self._begin(picture)
        size = self._stream.width, self._stream.height
        fitting = picture.convert("RGB") if picture.size == size else picture.convert("RGB").resize(size)
        with write_errors_explained(self._path):
            self._container.mux(self._stream.encode(self._av.VideoFrame.from_image(fitting)))

    def _begin(self, picture: Image.Image) -> Any:
        codec = next(name for name in CODECS if name in self._av.codecs_available)
        stream = self._container.add_stream(codec, rate=self._rate)
        # Colours are stored for two by two pixels.
        stream.width, stream.height = picture.width + picture.width % 2, picture.height + picture.height % 2
        stream.pix_fmt = "yuv420p"
        return stream

    def __enter__(self) -> "VideoFile":
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        # Closing writes what is still buffered, so that it may fail too.
        with suppress(OSError) if failed else write_errors_explained(self._path), closing(self._file):
            if self._stream is not None and not failed:
                self._container.mux(self._stream.encode())
            self._container.close()


def frame_lines(rows: Sequence[tuple[float, str]]) -> Iterator[str]:
    """What is printed about the frames: seconds and a summary, of the first ones."""
    for seconds, summary in rows[:MOST_FRAMES_TOLD]:
        yield f"{seconds:8.2f} s  {summary}"
    if len(rows) > MOST_FRAMES_TOLD:
        yield f"… and {len(rows) - MOST_FRAMES_TOLD} frames more"
