"""Arrays that belong to a program's structure."""

import numpy as np


class Constant:
    """A NumPy array that can be compared and hashed, for a static field: neither learned nor traced."""

    def __init__(self, value: np.ndarray):
        self.value = np.asarray(value)
        self.value.setflags(write=False)
        self._key = (self.value.shape, self.value.dtype.str, self.value.tobytes())
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Constant(shape={self.value.shape})"
