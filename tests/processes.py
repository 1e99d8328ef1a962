"""Function calls in other processes, which exit or are killed."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

# Environment variables that request more rounds extend the time limit.
_SECONDS = 100 + sum(4 * int(os.environ.get(f"NCZARR_{name}", "0")) for name in ("FORKS", "ROUNDS"))
_CALL = """
import pickle, sys
function, arguments = pickle.load(sys.stdin.buffer)
pickle.dump(function(*arguments), sys.stdout.buffer)
"""


def in_a_new_interpreter(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a module-level function in a new interpreter, and return its result.

    A fork of the test process would inherit locks. Threads that earlier tests left behind may hold
    these locks, so the fork could wait for them forever.
    """
    command = [sys.executable, "-c", _CALL]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        start_new_session=True,
    ) as process:
        try:
            answer, _ = process.communicate(pickle.dumps((function, arguments)), _SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0
    return pickle.loads(answer)


def in_a_child(method: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a forked or spawned child process, and return its result."""
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply_async(function, arguments).get(_SECONDS)


def run_in_processes(
    count: int, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]
) -> None:
    """Call a function with each tuple of arguments, in `count` spawned processes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        for future in [pool.submit(function, *item) for item in arguments]:
            future.result()
