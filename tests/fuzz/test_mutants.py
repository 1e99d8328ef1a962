"""Mutants of each corpus yield a result or an NczarrError, within limits on time and memory.

The tests try a few mutants in a fixed order. This command tries more:

``python -m tests.fuzz all --mutants 100000``
"""

import os
import random

import pytest

from tests.fuzz.mutants import mutant
from tests.fuzz.oracle import Broken, judge
from tests.fuzz.targets import CORPUS, TARGETS, corpus

MUTANTS = int(os.environ.get("NCZARR_MUTANTS", "2000"))


@pytest.mark.parametrize("target", TARGETS)
def test_fuzz_target_accepts_mutated_input_or_raises_nczarr_error(target):
    files = corpus(target)
    outcomes = set()
    for number in range(MUTANTS):
        data = mutant(files, random.Random(f"{target}-0-{number}"))
        try:
            outcomes.add(judge(TARGETS[target], data))
        except Broken as error:
            pytest.fail(f"python -m tests.fuzz {target} --only {number}: {error}\n{data[:2000]!r}")
    assert outcomes == {True, False}


@pytest.mark.parametrize("target", TARGETS)
def test_corpus_of_each_fuzz_target_contains_valid_file(target):
    def accepted(path):
        return judge(TARGETS[target], path.read_bytes())

    assert any(map(accepted, sorted((CORPUS / target).iterdir())))
