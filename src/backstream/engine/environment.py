"""What the last bits of a result depend on, apart from the settings of the run. It is saved with every checkpoint."""

import os
from importlib.metadata import version

import jax

from backstream._version import __version__


def current() -> dict[str, str]:
    """Versions, compiler flags and the device."""
    device = jax.devices()[0]
    return {
        "backstream": __version__,
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "device": f"{device.platform} {device.device_kind}",
    }


def differences(recorded: dict[str, str]) -> list[str]:
    """Sentences about what has changed since a checkpoint was written."""
    changed = [
        f"{name} ({recorded.get(name, 'unknown')!r}, now {value!r})"
        for name, value in current().items()
        if recorded.get(name) != value
    ]
    if not changed:
        return []
    return [
        f"The run was saved with another {', '.join(changed)}: it continues, but its last digits may differ from those "
        "of a run that was never stopped."
    ]
