"""Run the ``nczarr`` command as ``python -m xr_nczarr``."""

import sys

from xr_nczarr.cli.main import main

sys.exit(main())
