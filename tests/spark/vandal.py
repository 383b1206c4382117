"""A processor that damages what it keeps. Workers import it, so that it is in a file of its own."""

from backstream.engine.spark.processor import BucketProcessor


class Vandal(BucketProcessor):
    """Turns a bit of the last stream of a bucket."""

    def _keep(self, content):
        damaged = bytearray(content)
        damaged[-1] ^= 1
        super()._keep(bytes(damaged))
