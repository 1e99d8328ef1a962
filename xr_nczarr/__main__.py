"""``python -m xr_nczarr``: the same as the ``nczarr`` command."""

import sys

from xr_nczarr.cli import main

sys.exit(main())
