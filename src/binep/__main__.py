"""`python -m binep` is the command line."""

from binep.cli import main

if __name__ == "__main__":
    main()
