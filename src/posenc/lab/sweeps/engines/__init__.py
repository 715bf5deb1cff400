"""Engines: who carries out the runs of a sweep. Which run is begun, tried again or set aside, the sweep alone decides.

A file for each engine, and its name in `--engine`; `Engine` says what one has to have.
"""

from posenc import checks
from posenc.lab.results.frames import needed
from posenc.lab.sweeps.engines._engine import Engine, News
from posenc.lab.sweeps.engines.local import Local
from posenc.lab.sweeps.engines.ray import Ray

__all__ = ["ENGINES", "Engine", "Local", "News", "Ray", "engine_of"]

ENGINES = ("local", "ray")


def engine_of(name: str, address: str | None = None) -> Engine | None:
    """The engine of this name; None stands for the cores of this machine, which a sweep takes by itself.

    address  of ray: HOST:PORT of its head; default: the environment variable RAY_ADDRESS, or the Ray of this machine

    Raises ValueError for another name, a library that is missing, and an address that the engine has no use for.
    """
    checks.one_of("--engine", name, ENGINES)
    if name == "ray":
        try:
            needed("ray", "ray")
        except ModuleNotFoundError as error:
            raise ValueError(f"--engine ray: {error}") from None
        return Ray(address)
    if address is not None:
        raise ValueError(f"--address is for --engine ray, and the engine is {name}; leave it out")
    return None
