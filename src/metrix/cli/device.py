"""The flag --device, the same for every verb that runs a network."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="device that runs the network: cpu, cuda, one of several GPUs such as cuda:1, or mps; by default a GPU if "
        "there is one",
        show_default=False,
    ),
]


def with_device_flag(verb: Callable[..., None]) -> Callable[..., None]:
    """Add the flag to a verb, which computes on the device that it names."""

    def command(**values: object) -> None:
        device = values.pop("device")
        if isinstance(device, str):
            from metrix.machine.devices import use_device

            use_device(device)
        verb(**values)

    own = inspect.signature(verb, eval_str=True).parameters.values()
    flag = inspect.Parameter("device", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Device)
    command.__doc__, command.__name__ = verb.__doc__, verb.__name__
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own), flag]
    )
    command.__annotations__ = {name: p.annotation for name, p in command.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return command
