"""Run a script that takes its models from timm, with ours among them:

python -m vitreous.models train.py --model paca_b0 --data-dir photos

timm's scripts have no option to import packages with further models; they know what was imported before.
"""

import runpy
import sys
from pathlib import Path

import vitreous  # noqa: F401  (registers the models)


def main() -> None:
    """Run the script with the remaining arguments; it finds the modules beside it as usual."""
    script = sys.argv[1] if len(sys.argv) > 1 else ""
    if not Path(script).is_file():
        given = f"{script!r} is not a file" if script else "no script given"
        print(f"vitreous: {given}; use: python -m vitreous.models SCRIPT.py [its arguments]", file=sys.stderr)
        sys.exit(2)
    del sys.argv[0]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
