"""`python -m metrix` is the command `metrix`."""

from metrix.cli.app import main

main()
