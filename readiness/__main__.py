"""`python -m readiness`."""

from readiness.cli import main

main()
