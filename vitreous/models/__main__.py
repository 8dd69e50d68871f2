"""Run a script that takes its models from timm, with ours among them:

python -m vitreous.models train.py --model paca_b0 --data-dir photos

timm has no way to name packages that bring models; its scripts know what was imported before them.
"""

import runpy
import sys
from pathlib import Path

import vitreous  # noqa: F401  (registers the models)


def main() -> None:
    """Everything after the script's name is the script's own, which also finds the modules beside it as usual."""
    script = sys.argv[1] if len(sys.argv) > 1 else ""
    if not Path(script).is_file():
        given = f"{script!r} is no file" if script else "no script given"
        print(f"vitreous: {given}; use: python -m vitreous.models SCRIPT.py [its arguments]", file=sys.stderr)
        sys.exit(2)
    del sys.argv[0]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
