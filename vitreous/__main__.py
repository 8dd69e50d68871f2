"""`python -m vitreous`: the same as the `vitreous` command."""

import sys

from vitreous_command import main

if __name__ == "__main__":
    sys.exit(main())
