"""python -m underhood is the command underhood."""

import sys

from underhood.cli import main

sys.exit(main())
