"""python -m underhood is the command underhood."""

import sys

from underhood.cli.entry import main

sys.exit(main())
