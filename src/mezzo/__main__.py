"""`python -m mezzo` is the `mezzo` command."""

from .tools.cli import main

if __name__ == "__main__":
    main()
