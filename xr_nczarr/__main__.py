"""Run ``python -m xr_nczarr`` as the ``nczarr`` command."""

import sys

from xr_nczarr.cli.main import main

sys.exit(main())
