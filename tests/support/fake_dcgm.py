"""A stand-in for DCGM's tools: answers as `dcgmi` writes them, about a GPU that is not there.

Installed twice, as `nv-hostengine` and as `dcgmi`, in one folder that holds the cache as a file. It
keeps to what matters of DCGM: samples with timestamps of which the newest counts, health watches
that look at the newest or at a difference, policies that report. Nothing made with it is measured.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path

HEALTH_OF_NEWEST = {"311": "Memory system", "395": "Memory system"}
HEALTH_OF_DIFFERENCE = {
    "202": "PCIe system", "240": "Power system", "241": "Thermal system", "439": "NVLINK system",
}  # fmt: skip
XID = "230"
START = {"150": 41, "202": 7, "240": 5_000_000, "241": 0, "311": 0, "395": 0, "439": 0}
POLICY = {
    "230": "XID error {} detected.",
    "311": "A double-bit ECC error has violated policy manager values.",
    "202": "A PCIe replay event has violated policy manager values.",
    "439": "NVLink Counter 439 has violated policy manager values.",
    "150": "The maximum thermal limit has violated policy manager values.",
}


def install(folder: Path, **settings: object) -> None:
    """Put both tools into a folder.

    Args:
        settings: `na` lists fields that the GPU does not have; `deaf` that injecting does nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(settings))
    for name in ("dcgmi", "nv-hostengine"):
        shutil.copyfile(__file__, folder / name)
        source = (folder / name).read_text()
        (folder / name).write_text(f"#!{sys.executable} -IS\n{source}")
        (folder / name).chmod(0o755)


HERE = Path(sys.argv[0]).resolve().parent


def samples() -> dict[str, list[list[float]]]:
    """For each field (seconds, value), the newest last. A torn file is read again."""
    while True:
        try:
            found = json.loads((HERE / "cache.json").read_text())
            break
        except ValueError:
            time.sleep(0.01)
    return {field: sorted(values) for field, values in found.items()}


def newest(field: str) -> int | None:
    values = samples().get(field, [])
    return int(values[-1][1]) if values else None


def engine(options: list[str]) -> int:
    now = time.time()
    start = {field: [[now, value]] for field, value in START.items()}
    (HERE / "cache.json").write_text(json.dumps(start))
    with socket.create_server(
        (options[options.index("--bind-interface") + 1], int(options[options.index("--port") + 1]))
    ) as server:
        while True:
            server.accept()[0].close()


def connect(options: list[str]) -> bool:
    host, _, port = options[options.index("--host") + 1].rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        print("Error: unable to establish a connection to the specified host: " + host)
        return False
    return True


def client(options: list[str]) -> int:
    if options == ["--version"]:
        print("\ndcgmi  version: 0.0.0-fake")
        return 0
    if not connect(options):
        return 255
    settings = json.loads((HERE / "settings.json").read_text())
    value_of = dict(itertools.pairwise(options))
    match options[0]:
        case "discovery":
            print("1 GPU found.\n+--------+------+\n| GPU ID | Device Information |")
            print("| 0      | Name: NVIDIA Fake                       |")
            print("|        | PCI Bus ID: 00000000:3B:00.0            |")
            print("|        | Device UUID: GPU-0                      |\n+--------+------+")
        case "health" if "--set" in options:
            print("Health monitor systems set successfully.")
        case "health":
            print(json.dumps(health(), indent=8))
        case "policy" if "--set" in options:
            print("Policy successfully set.")
        case "policy":
            listen()
        case "test":
            if not settings.get("deaf"):
                found = samples()
                at = time.time() + int(value_of["--offset"])
                found.setdefault(value_of["--field"], []).append([at, int(value_of["--value"])])
                (HERE / "cache.json.new").write_text(json.dumps(found))
                os.replace(HERE / "cache.json.new", HERE / "cache.json")
            print("Successfully injected field info.")
        case "dmon":
            field = value_of["--field-id"]
            value = newest(field)
            shown = "N/A" if value is None or int(field) in settings.get("na", []) else value
            print(f"#Entity   FIELD\nID\nGPU 0     {shown}")
        case _:
            print("PARSE ERROR: Argument: " + options[0])
            return 1
    return 0


def health() -> dict[str, object]:
    """What is wrong, as `dcgmi health --check --json` says it."""
    found = samples()
    bad = {}
    for field, system in HEALTH_OF_NEWEST.items():
        if found[field][-1][1] > 0:
            bad[system] = f"Field {field} is not zero on GPU 0."
    for field, system in HEALTH_OF_DIFFERENCE.items():
        if found[field][-1][1] != found[field][0][1]:
            bad[system] = f"Field {field} rose on GPU 0."
    if any(value == 95 for _, value in found.get(XID, [])):
        bad["Memory system"] = "GPU 0 had an uncontained error."
    body: dict[str, object] = {"Overall Health": {"value": "Failure" if bad else "Healthy"}}
    if bad:
        errors = {system: {"overflow": [text], "value": "Failure"} for system, text in bad.items()}
        gpu = {"children": {"Errors": {"children": errors}}, "value": "Failure"}
        body["GPU"] = {"children": {"0": gpu}}
    return {"body": body, "header": ["Health Monitor Report"]}


def listen() -> None:
    print("Listening for violations.")
    # As the real one, it leaves that in its buffer when it does not write to a terminal.
    told = {field: newest(field) for field in POLICY}
    while True:
        time.sleep(0.05)
        for field, words in POLICY.items():
            value = newest(field)
            if value is not None and value > (told[field] or 0) and (field != "150" or value > 95):
                print(f"Timestamp: {time.ctime()}\n{words.format(value)}", flush=True)
            told[field] = value


if __name__ == "__main__":
    run = engine if Path(sys.argv[0]).name == "nv-hostengine" else client
    sys.exit(run(sys.argv[1:]))
