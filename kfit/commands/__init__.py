"""The `kfit` command line: `main`, and a module for each subcommand."""
