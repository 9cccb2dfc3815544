"""Runs a program as the tasks of `kfit.launch`, on a Ray of this host.

Usage: on_ray.py PROGRAM [arguments...]; `RAY_FILES` names the folder of Ray's own files.
"""

import os
import sys

import ray

import kfit


def train(argv: list[str]) -> None:
    import runpy

    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    ray.init(
        address="local",  # whatever Ray the host may run besides
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=os.environ["RAY_FILES"],
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        kfit.launch(train, (sys.argv[1:],), workers=2, on="ray", max_restarts=100, grace=30, cpus=1)
    finally:
        ray.shutdown()
