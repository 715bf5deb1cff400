"""A cluster of Ray on loopback: a head without cores, and two machines of one core each.

Run by `Cluster` in a process of its own, whose standard input says what becomes of it: "lose" and "return" a machine.
It ends, with all that it has started, when its input does.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

OFF = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    # A cluster of this machine alone, on loopback.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # A machine is missed after two seconds.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    # What does not fit into an object store is refused, where Ray would else write it to the disk.
    "RAY_automatic_object_spilling_enabled": "0",
    "RAY_object_store_full_delay_ms": "10",
}
STORE = 80_000_000
"""Bytes of a machine's object store: the least that Ray takes is 75 MiB."""


class Cluster:
    """The cluster, for a test."""

    def __init__(self) -> None:
        self.environ = os.environ | OFF | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], env=self.environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            self.address = self.answer()
        except BaseException:
            # Nobody else holds what did not start, and its pipes would be told of in the middle of another test.
            self.end()
            raise

    def answer(self) -> str:
        assert self.process.stdout
        while line := self.process.stdout.readline():
            if line.startswith("> "):
                return line[2:].strip()
        raise AssertionError("the cluster has ended")

    def tell(self, words: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        assert self.answer() == words

    def driver(self, *arguments: str) -> subprocess.Popen:
        """A Python command that may use the cluster."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=self.environ,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            assert self.process.stdout
            self.process.stdout.close()


def until(true: Callable[[], object], process: subprocess.Popen, seconds: float = 120) -> None:
    """Wait until something is true while a process runs. Raises AssertionError after so long."""
    end = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, f"it ended too early: {process.communicate()}"
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def main() -> None:
    from ray.cluster_utils import Cluster as OfRay

    given = {"node_ip_address": "127.0.0.1", "object_store_memory": STORE}
    cluster = OfRay(True, head_node_args={"num_cpus": 0, "include_dashboard": False} | given)
    machines = [cluster.add_node(num_cpus=1, **given) for _ in range(2)]
    print(f"> {cluster.address}", flush=True)
    for words in map(str.strip, sys.stdin):
        if words == "lose":
            cluster.remove_node(machines.pop(), allow_graceful=False)
        elif words == "return":
            machines.append(cluster.add_node(num_cpus=1, **given))
        print(f"> {words}", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    # The folder of this file has a module named like one of Ray's own.
    sys.path = [path for path in sys.path if Path(path).resolve() != Path(__file__).parent.resolve()]
    main()
