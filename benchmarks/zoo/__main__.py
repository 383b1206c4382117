"""Compares methods with the references of the zoo. Results, page and picture are written into the repository."""

import argparse
import os

from benchmarks.zoo import catalogue, report
from benchmarks.zoo.comparison import compare
from benchmarks.zoo.methods import METHODS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("models", nargs="*", help="names of models; all of them if none is given")
    parser.add_argument("--methods", default=",".join(METHODS), help="names of methods, with commas between")
    parser.add_argument("--seeds", type=int, default=3, help="how many data sets of each model")
    parser.add_argument("--render", action="store_true", help="only write the page and the picture from the results")
    arguments = parser.parse_args()
    use_one_thread()
    if not arguments.render:
        names = arguments.models or [*catalogue.SINGLE_MODE, *catalogue.SEVERAL_MODES]
        compare([catalogue.find(name) for name in names], arguments.methods.split(","), arguments.seeds)
    report.render()


def use_one_thread() -> None:
    """XLA's threads wait more than they work on such small arrays, and processor time is what is compared.

    To be called before JAX computes anything.
    """
    os.environ.setdefault("NPROC", "1")
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()


if __name__ == "__main__":
    main()
