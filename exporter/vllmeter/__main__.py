"""Lets `python -m vllmeter` start the command line."""

from vllmeter.cli.app import main

if __name__ == "__main__":
    main()
