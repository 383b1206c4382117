"""Text that came from somebody else, before it goes to a terminal."""

import re

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal would act on or show in another order, and what it cannot show; tabs and ends of lines are left."""


def visible(text: str) -> str:
    r"""A text whose control characters are written out, so that they do nothing.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
