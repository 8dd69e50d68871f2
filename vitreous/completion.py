"""Completion of verbs and options for a shell.

vitreous completion bash
"""

import importlib
import io
from contextlib import redirect_stdout, suppress
from typing import Literal

from tyro.extras import subcommand_cli_from_dict

from vitreous_command import VERBS, WITHOUT_RESULT, as_command


def completion(shell: Literal["bash", "zsh", "fish"] = "bash") -> str:
    """Print a script that lets a shell complete verbs, options and their values with the Tab key.

    It is made once, and read by the shell when it starts; make it anew after an update.

    Examples:
        vitreous completion bash > ~/.local/share/bash-completion/completions/vitreous
        vitreous completion zsh > ~/.zfunc/_vitreous
        vitreous completion fish > ~/.config/fish/completions/vitreous.fish

    Args:
        shell: For which shell.

    Returns:
        The script.
    """
    functions = {verb: getattr(importlib.import_module(f"vitreous.{verb}"), verb) for verb in VERBS}
    commands = {
        verb: as_command(function, set(), without_result=verb in WITHOUT_RESULT) for verb, function in functions.items()
    }
    written = io.StringIO()
    with redirect_stdout(written), suppress(SystemExit):  # it ends the process after printing
        subcommand_cli_from_dict(commands, prog="vitreous", args=["--tyro-write-completion", shell, "-"])
    print(written.getvalue())
    return written.getvalue()
