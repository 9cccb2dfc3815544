"""Runs all servers of a cluster in one process, until its standard input ends.

all_servers.py CLUSTER    as JSON: {"worker": [...], "ps": [...]}
"""

import json
import sys

import tensorflow as tf


def main() -> None:
    cluster = json.loads(sys.argv[1])
    config = tf.compat.v1.ConfigProto()
    # Each waits for the others, in threads that they share.
    config.inter_op_parallelism_threads = 16
    servers = [
        tf.distribute.Server(
            tf.train.ClusterSpec(cluster), job_name=kind, task_index=index, config=config
        )
        for kind, listed in cluster.items()
        for index in range(len(listed))
    ]
    sys.stdin.read()
    del servers


if __name__ == "__main__":
    main()
