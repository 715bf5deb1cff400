"""A cluster of Ray: each run a task that streams what is heard of it, and its record at the end."""

import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from posenc.foreign import quoted
from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.results.frames import needed
from posenc.lab.runs import record
from posenc.lab.store import CannotWrite
from posenc.lab.sweeps.engines._engine import News
from posenc.lab.sweeps.engines.worker import NOTHING_BESIDES, Besides, check_unchanged

PIECE = 64 << 10
"""Bytes of a record in one message. Ray hands on less than 100 KiB by itself; more would lie in its object store, which
may be full, and goes with its machine."""

AHEAD = 2
"""So many times the runs that fit are in Ray's hands: no machine waits for us, and what makes a cluster grow sees that
there is more to do."""

LOOK_AFTER = 2.0
"""Seconds after which the machines are counted again: some are lost, and some return."""

START = "ray start --head --include-dashboard=false --disable-usage-stats"


class Ray:
    """Carry out runs on a cluster of Ray, which somebody else has started, and write their records here.

    address  HOST:PORT of its head; default: the environment variable RAY_ADDRESS, or the Ray of this machine

    A run is a task that asks for one core, and a GPU where its device is one, and that Ray itself never tries again.
    Nobody needs a shared disk: a record comes back compressed, in small messages. posenc, and every file that a run
    names, must be on each machine; where a file or a text differs there, the run fails and says so.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.streams: dict[Any, str] = {}
        self.pieces: dict[str, list[bytes]] = {}
        self.counted = -LOOK_AFTER

    def open(self, experiments: Sequence[Experiment], records: Path, besides: Besides = NOTHING_BESIDES) -> None:
        if besides.log:
            raise ValueError(
                "--log is for --engine local: a logger writes on the machine of its run, and ray has several; leave it "
                "out"
            )
        if besides.also is not None:
            raise ValueError("what is measured besides records is measured by --engine local alone")
        self.ray, self.records, self.make = needed("ray", "ray"), records, besides.make
        self.connect()
        for experiment in {on_gpu(run): run for run in experiments}.values():
            if not self.slots(experiment):
                self.close()
                has = "; ".join(f"{cores:g} cores and {gpus:g} GPUs" for cores, gpus in self.machines) or "none"
                gpu = " and a GPU" * on_gpu(experiment)
                raise ValueError(
                    f"--engine ray: a run needs a core{gpu}, and no machine of the cluster has that; it has {has}"
                )
        self.task = self.ray.remote(max_retries=0, num_returns="streaming")(carry_out)

    def connect(self) -> None:
        """Raises ValueError where there is no cluster."""
        if self.address and "://" in self.address:
            raise ValueError(
                f"--address is HOST:PORT of the head of a cluster, and posenc runs on one of its machines; got "
                f"{quoted(self.address)}"
            )
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        try:
            self.ray.init(
                address=self.address or "auto", logging_level="ERROR", log_to_driver=False, ignore_reinit_error=True
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"no cluster of Ray answers at {quoted(self.address or 'RAY_ADDRESS, or on this machine')}; start one "
                f"with {START}"
            ) from error
        finally:
            # Ray would have its own; a request to end is ours to answer.
            if main:
                signal.signal(signal.SIGTERM, before)

    def slots(self, experiment: Experiment) -> int:
        """How many such runs fit on the machines that are there now."""
        if time.monotonic() - self.counted > LOOK_AFTER:
            has = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
            self.machines = [(machine.get("CPU", 0), machine.get("GPU", 0)) for machine in has]
            self.counted = time.monotonic()
        return sum(int(min(machine) if on_gpu(experiment) else machine[0]) for machine in self.machines)

    def has_room(self, experiment: Experiment) -> bool:
        return len(self.streams) < AHEAD * self.slots(experiment)

    def begin(self, key: str, experiment: Experiment) -> None:
        task = self.task.options(num_cpus=1, num_gpus=int(on_gpu(experiment)))
        self.streams[task.remote(self.make, key, experiment)] = key

    def news(self, seconds: float) -> Iterator[News]:
        if not self.streams:
            time.sleep(seconds)
            return
        if not self.ray.wait(list(self.streams), num_returns=1, timeout=seconds)[0]:
            return
        ready, _ = self.ray.wait(list(self.streams), num_returns=len(self.streams), timeout=0)
        for stream in ready:
            found = self.heard(stream, self.streams[stream])
            if found.over:
                del self.streams[stream]
                self.pieces.pop(found.key, None)
            yield found

    def heard(self, stream: Any, key: str) -> News:
        errors = self.ray.exceptions
        try:
            what = self.ray.get(next(stream))
        except errors.OutOfMemoryError:
            return News(key, died="its process was killed, because its machine ran out of memory")
        except errors.WorkerCrashedError:
            return News(key, died="its process was killed (out of memory?)")
        except errors.RayTaskError as error:
            return News(key, failed=f"{type(error.cause).__name__}: {error.cause}")
        except errors.RayError as error:
            return News(key, died=f"its machine was lost ({type(error).__name__})", lost=True)
        if isinstance(what, bytes):
            self.pieces.setdefault(key, []).append(what)
            return News(key)
        if isinstance(what, str):
            return News(key, failed=what)
        if what.get("state") == "done":
            return self.written(key, what)
        return News(key, what)

    def written(self, key: str, changes: dict[str, Any]) -> News:
        """The news that a run is done, once its record is in the folder."""
        try:
            store.write(self.records / f"{key}.json", zlib.decompress(b"".join(self.pieces.pop(key, []))))
        except CannotWrite as error:
            return News(key, failed=error)
        return News(key, changes)

    def close(self) -> None:
        """The tasks end with our part of the cluster."""
        self.streams.clear()
        self.ray.shutdown()


def on_gpu(experiment: Experiment) -> bool:
    return experiment.device.startswith("cuda")


def carry_out(make: Callable[..., dict[str, Any]], key: str, experiment: Experiment) -> Iterator[Any]:
    """On a machine of the cluster: changes of the run's progress, the pieces of its record, and that it is done.

    Words stand for why it failed. The run has a thread of its own, so that what it tells is sent while it goes on.
    """
    heard: SimpleQueue[Any] = SimpleQueue()

    def tell(**changes: Any) -> None:
        heard.put(changes)

    def run() -> None:
        try:
            import torch

            torch.set_num_threads(1)
            tell(state="running")
            check_unchanged(experiment)
            if record.key_of(experiment) != key:
                raise ValueError("its text is another one on that machine than where the sweep began")
            found = make(experiment, key, tell)
            data = zlib.compress(store.sealed(found))
            for start in range(0, len(data), PIECE):
                heard.put(data[start : start + PIECE])
            tell(state="done")
        except Exception as error:
            # As words: not every exception of somebody else's encoding can be sent.
            heard.put(f"{type(error).__name__}: {error}")

    threading.Thread(target=run, daemon=True).start()
    while True:
        what = heard.get()
        yield what
        if isinstance(what, str) or (isinstance(what, dict) and what.get("state") == "done"):
            return
