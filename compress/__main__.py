"""The command line, as ``python -m compress`` and as the script ``compress``."""

import sys


def command_line() -> None:
    """Run what was typed; an interruption while the command line is imported is one sentence as well."""
    try:
        from compress.cli import main
    except KeyboardInterrupt:
        print("\nInterrupted. Nothing was written.", file=sys.stderr)
        sys.exit(130)
    main()


if __name__ == "__main__":
    command_line()
