"""Makes `python -m kfit` run the `kfit` command."""

from kfit.commands.main import main

raise SystemExit(main())
