"""`python -m anytime`."""

from __future__ import annotations

import sys

from anytime.cli import main

sys.exit(main())
