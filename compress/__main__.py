"""The command line, as ``python -m compress`` and as the script ``compress``."""

import os
import sys


def command_line() -> None:
    """Run what was typed; an interruption while the command line is imported is one sentence as well."""
    try:
        from compress.cli import main
    except KeyboardInterrupt:
        print("\nInterrupted. Nothing was written.", file=sys.stderr)
        sys.exit(130)  # ExitCode.INTERRUPTED, of what could not be imported
    main()


if __name__ == "__main__":
    # Import nothing of the folder that this was typed in, unless the package itself lies there: libraries try to import
    # what may not be installed, such as z3, and would find a folder of that name.
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()] and sys.path[0] != home:
        del sys.path[0]
    command_line()
