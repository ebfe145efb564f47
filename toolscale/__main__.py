"""Run the command line as `python -m toolscale`."""

from toolscale.cli import main

main()
