"""A byte-level tokenizer: one token for each byte of UTF-8, and two special ones.

What belongs here: text to ids and back. A model's vocabulary may go on beyond these; such ids have
a printable form but stand for no text. What does not: the model.
"""

from __future__ import annotations

BEGIN = 256
END = 257
SMALLEST_VOCABULARY = 258

_SPECIAL = {BEGIN: "<|begin|>", END: "<|end|>"}
_PRINTABLE = range(0x20, 0x7F)


def encode(text: str) -> list[int]:
    """The ids of a prompt: `BEGIN`, then one for each byte.

    Raises:
        UnicodeEncodeError: a lone surrogate, which has no bytes in UTF-8.
    """
    return [BEGIN, *text.encode()]


def token_text(token_id: int) -> str:
    """A printable form, different for each id; a completion's text is made of these."""
    if token_id in _PRINTABLE:
        return chr(token_id)
    if token_id < BEGIN:
        return f"<0x{token_id:02X}>"
    return _SPECIAL.get(token_id, f"<|{token_id}|>")
