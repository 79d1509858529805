"""Runs rdma-core's Python tests one after the other and writes what became of each to JUDGE_RESULTS.

usage: python-run.py FOLDER DEVICE; FOLDER holds rdma-core's `tests` package. JUDGE_SHORT=1: without those that take long.
"""

import ctypes
import importlib
import os
import random
import sys
import unittest

folder, device = sys.argv[1:3]
# rdma-core's own argument parser reads these.
sys.argv = ["run_tests.py", "--dev", device]
sys.path.insert(0, folder)

# Tests that break a rule of the hardware on purpose, and the one complaint that each must cause.
ON_PURPOSE = {"test_atomic.AtomicTest.test_atomic_invalid_lkey": "UnknownKey"}

# Tests that fail on the software device, and why. A failure counts as skipped. A success counts as
# passed.
KNOWN = {
    "test_mlx5_dr.Mlx5DrTest.test_flow_meter": "software steering needs DEVX; the test (rdma-core 56) takes registers for metadata for granted",
}

emulator = ctypes.CDLL(None)
emulator.mlx5_emu_control.restype = ctypes.c_int64


def complaints():
    return emulator.mlx5_emu_control(b"count complaint")


class Result(unittest.TestResult):
    """Writes each test's result as it ends: a test that hangs is the one after the last."""

    def __init__(self):
        super().__init__()
        self.results = open(os.environ["JUDGE_RESULTS"], "a", buffering=1)

    def startTest(self, test):
        super().startTest(test)
        self.name = test.id().removeprefix("tests.")
        # Some tests choose attributes at random. The fixed seed repeats the choice in every run.
        random.seed(self.name)
        self.before = complaints()
        self.said = None
        print(self.name, end=" ... ", flush=True)

    def say(self, result, reason=""):
        # The first result counts, but a failure replaces a success.
        if self.said is None or (self.said[0] == "ok" and result != "ok"):
            self.said = (result, " ".join(str(reason).split())[:200])

    def addSuccess(self, test):
        self.say("ok")

    def addSkip(self, test, reason):
        self.say("skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say("failed", f"{err[0].__name__}: {err[1]}")
        print(self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.say("failed", f"{err[0].__name__}: {err[1]}")
        print(self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.say("failed", f"{subtest.id()}: {err[1]}")

    def stopTest(self, test):
        super().stopTest(test)
        new = complaints() - self.before
        wanted = 1 if self.name in ON_PURPOSE else 0
        if self.said is None:
            self.say("ok")
        if self.said[0] == "ok" and new != wanted:
            self.said = ("failed", f"{new} complaints of the device, {wanted} expected")
        if self.said[0] == "failed" and self.name in KNOWN:
            self.said = ("skipped", f"known failure: {KNOWN[self.name]}")
        result, reason = self.said
        print(result, reason, flush=True)
        self.results.write(f"{os.environ['JUDGE']}\t{result}\t{self.name}\t{reason}\n")


def every_test(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from every_test(test)
        else:
            yield test


def main():
    from args_parser import parser  # in FOLDER/tests

    parser.parse_args()
    suite = unittest.TestSuite()
    for file in sorted(os.listdir(os.path.join(folder, "tests"))):
        if file.startswith("test_") and file.endswith(".py"):
            module = importlib.import_module("tests." + file.removesuffix(".py"))
            suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    result = Result()
    for test in every_test(suite):
        test.run(result)
    print(f"{result.testsRun} run")
    # Skip the device's exit handler, which would count the complaints made on purpose.
    sys.stdout.flush()
    for library in os.environ.get("LD_PRELOAD", "").replace(":", " ").split():
        # The library of doorbell-run counts what it took over.
        if hasattr(preloaded := ctypes.CDLL(library), "doorbell_verbs_print_counts"):
            preloaded.doorbell_verbs_print_counts()
    os._exit(0)


sys.path.insert(0, os.path.join(folder, "tests"))
main()
