"""`python -m kfit` is `kfit`."""

from kfit.cli import main

raise SystemExit(main())
