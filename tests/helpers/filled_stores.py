"""Fills the object store of every machine of a cluster of Ray, and keeps it full until its input ends.

As a command: `filled_stores.py ADDRESS BYTES`, with the bytes of one object for each store. It says how many are
full when all are there.
"""

import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On


@ray.remote(num_cpus=0)
class Hoard:
    """Owns an object, which stays in the store of its machine as long as it lives."""

    def fill(self, size: int) -> None:
        self.kept = ray.put(bytes(size))


def main() -> None:
    ray.init(sys.argv[1], log_to_driver=False, logging_level="error")
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    hoards = [Hoard.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes]
    ray.get([hoard.fill.remote(int(sys.argv[2])) for hoard in hoards])
    print(f"{len(hoards)} are full", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
