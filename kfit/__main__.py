"""`python -m kfit` is `kfit`."""

from kfit.commands.main import main

raise SystemExit(main())
