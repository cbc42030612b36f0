"""`python -m asterism`: the command, where its script is not on the path or belongs to another Python."""

import sys

from asterism.cli.main import main

if __name__ == "__main__":  # processes that are started anew import this module
    sys.exit(main())
