"""Fuzz one target or all targets: ``python -m tests.fuzz zarray --mutants 100000``.

Mutant n of a seed is always the same. A failing mutant is saved and printed with its number, and
``--only n`` repeats it. If the interpreter crashes or hangs, only one process ends, and the run
continues. With ``--guided``, atheris (``pip install atheris``) chooses mutants by the code that
they reach.
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import os
import random
import sys
from collections.abc import Sequence


def run(target: str, seed: int, start: int, stop: int, progress: memoryview) -> None:
    """Try the mutants from `start` to `stop`, and report the number of each before it is tried."""
    from tests.fuzz.mutants import mutant
    from tests.fuzz.oracle import Broken, judge
    from tests.fuzz.targets import TARGETS, corpus

    faulthandler.enable()
    files = corpus(target)
    for number in range(start, stop):
        progress[0] = number
        data = mutant(files, random.Random(f"{target}-{seed}-{number}"))
        try:
            progress[1] += judge(TARGETS[target], data)
        except Broken as error:
            progress[2] += 1
            report(target, seed, number, str(error), data)


def report(target: str, seed: int, number: int, problem: str, data: bytes) -> None:
    path = f"fuzz-{target}-{seed}-{number}"
    with open(path, "wb") as file:
        file.write(data)
    print(f"{target} --seed {seed} --only {number} ({path}): {problem}", flush=True)


def fuzz(target: str, seed: int, count: int) -> int:
    """Try mutants in a separate process. If a mutant ends it, try the others in a new process."""
    progress = memoryview(mmap.mmap(-1, 24)).cast("q")  # number, accepted, broken
    first = 0
    while first < count:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            run(target, seed, first, count, progress)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        first = count
        if code:
            first = progress[0] + 1
            progress[2] += 1
            report(target, seed, progress[0], f"the process ended with {code}", b"")
    _, accepted, broken = progress
    print(f"{target}: {count:,} mutants of seed {seed}: {accepted:,} accepted, {broken} broken")
    return broken


def fuzz_guided(target: str, seed: int, count: int, seconds: int) -> None:
    """Let atheris choose mutants, save those that reach new code, and finally end the process."""
    import atheris

    with atheris.instrument_imports(include=["xr_nczarr"]):
        from tests.fuzz.mutants import mutant
        from tests.fuzz.oracle import judge
        from tests.fuzz.targets import CORPUS, TARGETS

    def mutate(data: bytes, most: int, own_seed: int) -> bytes:
        chance = random.Random(own_seed)
        changed = atheris.Mutate(data, most) if chance.random() < 0.3 else mutant([data], chance)
        return changed[:most]

    def test(data: bytes) -> None:
        last.seek(0)  # save the mutant first, because the process ends if it runs out of memory
        last.truncate()
        last.write(data)
        judge(TARGETS[target], data)

    result = f"fuzz-{target}-found"
    os.makedirs(result, exist_ok=True)
    last = open(f"fuzz-{target}-last", "wb", buffering=0)  # noqa: SIM115  (until the process ends)
    arguments = [sys.argv[0], f"-runs={count}", f"-max_total_time={seconds}", f"-seed={seed + 1}"]
    arguments += ["-max_len=8192", "-timeout=600", "-rss_limit_mb=4096", "-print_final_stats=1"]
    atheris.Setup([*arguments, result, str(CORPUS / target)], test, custom_mutator=mutate)
    atheris.Fuzz()


def main(arguments: Sequence[str] | None = None) -> int:
    # The names come from folders, because atheris must be imported before the package.
    targets = sorted(os.listdir(os.path.join(os.path.dirname(__file__), "corpus")))
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*targets, "all"])
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="try one mutant, with its traceback")
    parser.add_argument("--guided", action="store_true", help="let atheris choose the mutants")
    parser.add_argument("--seconds", type=int, default=0, help="time limit of guided fuzzing")
    original = parser.parse_args(arguments)
    if original.only is not None:
        from tests.fuzz.mutants import mutant
        from tests.fuzz.oracle import judge
        from tests.fuzz.targets import TARGETS, corpus

        chance = random.Random(f"{original.target}-{original.seed}-{original.only}")
        data = mutant(corpus(original.target), chance)
        print(data)
        print("accepted" if judge(TARGETS[original.target], data) else "refused")
        return 0
    if original.guided:
        fuzz_guided(original.target, original.seed, original.mutants, original.seconds)
    chosen = targets if original.target == "all" else [original.target]
    return min(1, sum(fuzz(target, original.seed, original.mutants) for target in chosen))


if __name__ == "__main__":
    sys.exit(main())
