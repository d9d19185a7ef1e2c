"""A process that has imported packages, and forks for each run of pytest: `python warm.py PACKAGE ...`.

Each line of its input has two paths: a file with arguments of pytest, and one for the output. It prints the process of
the run, which has a session of its own, and then the exit code.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress

import pytest
from hypothesis import Phase, settings


def main() -> None:
    for name in sys.argv[1:]:
        with suppress(ImportError):
            importlib.import_module(name)
    # A failure needs no smallest example. The profile of `conftest.py` inherits the phases.
    settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate))
    settings.load_profile("mutants")
    for line in sys.stdin:
        arguments, output = line.split()
        run = os.fork()
        if run == 0:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for stream in (1, 2):
                os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
            code = pytest.main(["-x", "-q", "--tb=no", "-p", "no:cacheprovider", f"@{arguments}"])
            sys.stdout.flush()
            os._exit(code)
        print(run, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
