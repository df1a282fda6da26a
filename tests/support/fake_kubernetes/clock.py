"""Time stamps of logs, as container runtimes write them: without trailing zeros."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(at: float) -> str:
    """RFC 3339 with nanoseconds."""
    moment = datetime.fromtimestamp(int(at), UTC)
    fraction = f"{at % 1:.6f}"[2:].rstrip("0")
    return f"{moment:%Y-%m-%dT%H:%M:%S}{'.' + fraction if fraction else ''}Z"


def parse_stamp(text: str) -> float:
    head, _, tail = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(head + "+00:00").timestamp() + float(f"0.{tail or 0}")
